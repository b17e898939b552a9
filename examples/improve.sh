#!/bin/sh
# Trains a translator on from corrections, and serves the new one only if it is better; see docs/serving.md.
#
#   examples/improve.sh LIVE CONFIG [PID [OPTION …]]
#
# LIVE: a symbolic link to the run folder that `tfm serve LIVE` serves. CONFIG names what to train on: the corrections,
# and what LIVE has learned from. PID: the server's, which then loads the new model. OPTION: of `tfm compare`, such as
# --source and --reference. The new run stands beside the old one; nothing is removed.
set -eu
[ $# -ge 2 ] || { sed -n '2,8s/^# *//p' "$0" >&2; exit 2; }
live=$1 config=$2 pid=${3:-}
shift "$(($# < 3 ? 2 : 3))"
[ -L "$live" ] || { echo "error: $live: is no symbolic link to a run folder; make one with ln -s" >&2; exit 2; }
old=$(readlink -f "$live")
new=$(dirname "$old")/$(basename "$live")-$(date -u +%Y%m%dT%H%M%S)

tfm doctor "$config" --write "$new.yaml" # leaves out what should not be learned
tfm train "$new.yaml" --out "$new" --set "training.init_from=$old" --quiet
code=0
tfm compare "$old" "$new" --metric chrf --strict --quiet "$@" || code=$?
[ "$code" -le 1 ] || exit "$code"
if [ "$code" -eq 1 ]; then
    echo "$new is not better; $live is still $old" >&2
    exit 1
fi
ln -s "$new" "$live.$$"
mv -T "$live.$$" "$live" # at once: whoever opens it finds the one or the other
[ -z "$pid" ] || kill -HUP "$pid"
echo "$live is now $new" >&2
