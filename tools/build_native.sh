#!/bin/sh
# Installs llama-cpp-python, built for this machine's CPU: build_native.sh PYTHON REQUIREMENT [PIP ARGUMENTS]
# CMAKE_ARGS is for other hardware; with pip arguments that want a wheel nothing is built. See docs/install.md.
set -eu
python=$1
requirement=$2
shift 2

if "$python" -m pip show --quiet llama-cpp-python 2>/dev/null; then
    exit 0
fi

cores=1
case "$*" in
*prefer-binary* | *only-binary*)
    echo "installing a wheel of $requirement"
    ;;
*)
    if ! { command -v cc || command -v gcc || command -v clang; } >/dev/null 2>&1 ||
        ! { command -v c++ || command -v g++ || command -v clang++; } >/dev/null 2>&1; then
        cat >&2 <<'EOF'
There is no C and C++ compiler here, and libllama is built from source by default.
Either install one (Debian: apt-get install build-essential; macOS: xcode-select --install),
or use a prebuilt wheel of llama-cpp-python: docs/install.md names the index that holds them, then
  make serve NATIVE_PIP_ARGS="--only-binary llama-cpp-python --extra-index-url INDEX"
EOF
        exit 1
    fi
    cores=$("$python" -c 'import os; print(os.cpu_count() or 1)')
    echo "building libllama ($requirement): for a CPU about $((16 / cores + 1)) minutes on $cores cores, once;"
    echo "pip keeps the result in its cache. A line every minute says that it is still running."
    ;;
esac

# What is changed in libllama, and why: see there.
mend=
case $(uname -m) in
x86_64 | amd64)
    mend=$(cd "$(dirname "$0")" && pwd)/native/mend.h
    export CFLAGS="${CFLAGS:-} -include \"$mend\"" CXXFLAGS="${CXXFLAGS:-} -include \"$mend\""
    ;;
esac

quiet_pip() {
    sh "$(dirname "$0")/quietly.sh" "$(dirname "$python")/../pip.log" \
        "$python" -m pip --disable-pip-version-check "$@"
}

install() {
    CMAKE_ARGS="${CMAKE_ARGS:-} -DGGML_RPC=ON" CMAKE_BUILD_PARALLEL_LEVEL=$cores \
        quiet_pip install --progress-bar off "$@" "$requirement"
}

install "$@"

# pip's cache does not know with which flags something was built.
is_mended() {
    mark=$(sed -n 's/.*"\(mended by corral: .*\)".*/\1/p' "$mend")
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    grep -q "$mark" "$packages"/llama_cpp/lib/libggml-cpu*
}

if [ -n "$mend" ] && [ $# -eq 0 ] && ! is_mended; then
    echo "pip's cache has it built otherwise: building it anew"
    quiet_pip cache remove llama_cpp_python
    quiet_pip uninstall --yes llama_cpp_python
    install
fi
