#!/bin/sh
# Runs a command without showing what it prints, unless it fails: quietly.sh LOG COMMAND [ARGUMENT ...]
# Says every minute (EVERY_S seconds) that it is still running. LOG has the output meanwhile.
set -u
log=$1
shift

start=$(date +%s)
while sleep "${EVERY_S:-60}" >/dev/null 2>&1; do
    echo "... still running after $((($(date +%s) - start) / 60)) min (its output: $log)"
done &
beat=$!
trap 'kill "$beat" 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$@" >"$log" 2>&1
status=$?
if [ "$status" -ne 0 ]; then
    cat "$log" >&2
    echo "failed with status $status: $*" >&2
    exit "$status"
fi
rm -f "$log"
