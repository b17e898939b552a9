#!/bin/sh
# The best translator from little text: the corpus beside what models of both directions make of it; docs/training.md.
#
#   examples/best.sh SOURCE TARGET TRAIN VALID OUT [OPTION …]
#
# SOURCE, TARGET: language codes, such as de en. TRAIN, VALID: text files without their endings: data/train stands for
# data/train.de and data/train.en. OUT: a folder; the translator becomes OUT/final. OPTION: of every tfm train, such as
# --device or --set training.r_drop=5. Given again, it continues where it was interrupted. In the environment:
# MODELS=2: so many models of each direction, which translate together. FINAL='--set model.d_model=256 …': options of
# the last tfm train alone.
set -eu
[ $# -ge 5 ] || { sed -n '2,11s/^# *//p' "$0" >&2; exit 2; }
source=$1 target=$2 train=$3 valid=$4 out=$5 models=${MODELS:-1}
shift 5
for option in "$@"; do # what was translated with old models would stay
    [ "$option" != --fresh ] || { echo "$0: --fresh: not here; choose another folder than $out" >&2; exit 2; }
done
case $models in '' | *[!0-9]*) echo "$0: MODELS=$models: give a number" >&2; exit 2 ;; esac
further='' # BSD's seq counts down from 2 to 1
while [ "$models" -ge 2 ]; do further="$models $further"; models=$((models - 1)); done
mkdir -p "$out"
config() { # of one direction
    cat << END
data:
  source_language: $1
  target_language: $2
  train: {source: $train.$1, target: $train.$2}
  valid: {source: $valid.$1, target: $valid.$2}
model: {preset: auto}
END
}
config "$source" "$target" > "$out/forward.yaml"
config "$target" "$source" > "$out/backward.yaml"
for direction in forward backward; do
    tfm train "$out/$direction.yaml" --out "$out/$direction" "$@"
    for number in $further; do
        tfm train "$out/$direction.yaml" --out "$out/$direction-$number" "$@" --set training.seed="$number"
    done
done
together() { # DIRECTION COMMAND …: with the further models of that direction
    direction=$1
    shift
    for number in $further; do set -- "$@" --with "$out/$direction-$number"; done
    "$@"
}
[ -e "$out/translated/manifest.json" ] ||
    together forward tfm distill "$out/forward" "$out/forward/config.yaml" --out "$out/translated"
[ -e "$out/backtranslated/manifest.json" ] || together backward \
    tfm backtranslate "$out/backward" --input "$train.$target" --out "$out/backtranslated" \
        --config "$out/forward/config.yaml"
pair() { echo "{source: $1.$source, target: $1.$target}"; }
# shellcheck disable=SC2086  # FINAL is several words
tfm train "$out/forward/config.yaml" --out "$out/final" "$@" ${FINAL:-} \
    --set "data.train=[$(pair "$train"), $(pair "$out/translated/train"), $(pair "$out/backtranslated/train")]"
