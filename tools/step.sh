#!/bin/sh
# step.sh TEXT COMMAND..: run a command that takes long and says little. It prints the text, the
# seconds so far every ten seconds, and the time in all; the command's own words where it fails.
#
#     tools/step.sh "installing" pip install numpy    ->    installing ... 10 s ... 17 s
text=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%s ...' "$text"
begin=$(date +%s)
"$@" >"$log" 2>&1 &
child=$!
trap 'kill "$child" 2>/dev/null; printf " interrupted\n"; exit 130' INT TERM
told=10
while kill -0 "$child" 2>/dev/null; do
  sleep 1
  taken=$(($(date +%s) - begin))
  if [ "$taken" -ge "$told" ]; then
    printf ' %d s ...' "$taken"
    told=$((taken + 10))
  fi
done
status=0
wait "$child" || status=$?
if [ "$status" -ne 0 ]; then
  printf ' failed\n'
  cat "$log" >&2
  exit "$status"
fi
printf ' %d s\n' $(($(date +%s) - begin))
