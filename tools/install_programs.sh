#!/bin/sh
# Installs the Debian packages among the arguments whose program is missing, as jq, or node:nodejs where the
# package has another name; services among them do not start.
set -eu
missing=""
for each in "$@"; do
    command -v "${each%%:*}" >/dev/null 2>&1 || missing="$missing ${each#*:}"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "please install:$missing" >&2
    exit 1
fi
echo "installing$missing"
sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update -qq
# Packages ask policy-rc.d whether they may start what they bring. One that is there already has its reasons.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '$sudo rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
fi
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
case $missing in
*prometheus*)
    # Nor at the next start of this machine.
    if command -v systemctl >/dev/null 2>&1; then $sudo systemctl disable -q prometheus || true; fi
    ;;
esac
