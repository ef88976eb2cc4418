#!/usr/bin/env bash
# A chat in the terminal, with curl and jq; it remembers what was said.
#
#    ./chat.sh [--url http://127.0.0.1:8080] [--key KEY] [--system TEXT] [--max-tokens N] [--temperature T]
set -euo pipefail

url=${CORRAL_URL:-http://127.0.0.1:8080}
key=${LLAMA_API_KEY:-}
system=
fields='{"stream": true}'
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
    case $1 in
    --url) url=$2 ;;
    --key) key=$2 ;;
    --system) system=$2 ;;
    --max-tokens) fields=$(jq -c --argjson n "$2" '.max_tokens = $n' <<<"$fields") ;;
    --temperature) fields=$(jq -c --argjson t "$2" '.temperature = $t' <<<"$fields") ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done

messages='[]'
[ -z "$system" ] || messages=$(jq -nc --arg text "$system" '[{role: "system", content: $text}]')
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

# Prints the text of the events that come in. An error is an event, or all that comes.
show() {
    jq -Rnrj --unbuffered '
        inputs | select(test("^(data: )?\\{")) | ltrimstr("data: ") | fromjson
        | if .error then "\(.error.message)\n" | halt_error(1) else .choices[0].delta.content // "" end'
}

# The key is in no command line of curl, which others may read.
header() {
    [ -z "$key" ] || printf 'header = "Authorization: Bearer %s"\n' "$key"
}

ask() {
    jq -nc --argjson fields "$fields" --argjson messages "$messages" '$fields + {messages: $messages}' |
        curl -sS --no-buffer --config <(header) --header 'Content-Type: application/json' --data-binary @- \
            "$url/v1/chat/completions" | show | tee "$answer"
}

add() {
    messages=$(jq -c --arg role "$1" --rawfile text "$2" '. + [{role: $role, content: $text}]' <<<"$messages")
}

while IFS= read -r -e -p '> ' line; do
    [ -n "${line// /}" ] || continue
    before=$messages
    add user <(printf %s "$line")
    if ask; then add assistant "$answer"; else messages=$before; fi
    echo
done
echo
