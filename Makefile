# The everyday commands. Each does what it needs first, so `make run` works in a fresh clone.
# TORCH_DIR=<torch folder> uses an installed torch instead of the one in .venv.
.DEFAULT_GOAL := help
.PHONY: help setup program build python run run-dit test test-long test-hosts test-python test-pages test-sanitizers test-asan \
  test-tsan test-all bench pictures check format clean

# Paths are relative to this file, also when another Makefile includes or calls it.
root := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:  # the targets are steps that follow each other; ninja and ctest run in parallel inside

# Absolute, since the scripts start in other folders.
override TORCH_DIR := $(if $(TORCH_DIR),$(abspath $(TORCH_DIR)))
export TORCH_DIR
torch_option := $(if $(TORCH_DIR),-DTORCH_DIR="$(TORCH_DIR)")

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(root)Makefile | expand -t 17

setup: ## install what is missing: Debian packages, and libtorch and tools into .venv (quick when nothing is)
	@$(root)scripts/setup

program: ## build/startrail alone; installs only what that takes
	@$(root)scripts/setup run
	@$(call build_preset,release,OFF,startrail_command)

build: setup ## build/startrail and the tests
	@$(call build_preset,release,ON)

python: program ## the Python package, in build/python (PYTHONPATH=build/python); `pip install .` installs it
	@$(call build_preset,release,OFF,startrail_python)

run: program ## try it: train a small GPT on this source tree, its sequence split over 8 ranks of this machine
	@$(call show,rm -rf runs/quickstart && build/startrail train examples/configs/quickstart.toml)

run-dit: program ## the same for pictures: train a small DiT on generated shapes, draw some, and see if they are recognised
	@$(call show,rm -rf runs/shapes && build/startrail train examples/configs/shapes.toml)
	@$(call show,build/startrail evaluate --checkpoint runs/shapes --recognise)

test: build check ## build, scripts/check and the fast tests
	cd $(root) && ctest --preset release

test-long: build ## the long tests
	@$(call build_preset,release,ON,long_tests)
	cd $(root) && ctest --preset long

test-hosts: build ## ranks as processes: kills, stops, cuts, real launchers; as root it installs those that are missing
	cd $(root) && ctest --preset hosts

test-python: build ## the Python package: models, trainers, compilers, faults, examples, installing
	@$(root)scripts/setup python
	cd $(root) && ctest --preset python

test-pages: build ## pages to look at, in a real browser; it installs Chromium where there is none
	@$(root)scripts/setup pages
	cd $(root) && ctest --preset pages

test-sanitizers: test-asan test-tsan ## the two below

test-asan: setup ## layout, plan, run and train under the sanitizers of memory and of undefined behaviour
	@$(call build_preset,asan,ON)
	cd $(root) && ctest --preset asan

test-tsan: setup ## run and train under the sanitizer of threads
	@$(call build_preset,tsan,ON)
	cd $(root) && ctest --preset tsan

test-all: test test-long test-hosts test-python test-pages test-sanitizers ## all of these

bench: program ## the benchmarks: attention over ranks, its kernel, training steps, tokenizing
	cd $(root) && bench/run
	@$(call show,build/startrail bench kernel)
	@$(call show,bench/train)
	@$(call show,bench/tokenize)

pictures: program ## make the pictures of README and docs/ again, from the pages of `startrail show`
	@$(root)scripts/setup pages
	@$(root)scripts/pictures

check: setup ## format, include order, and that the documents name only what exists
	@$(root)scripts/check

format: setup ## clang-format all sources
	@$(root)scripts/check --format

clean: ## remove build/ (.venv stays)
	rm -rf $(root)build

# Print a command as a user would type it, then run it.
define show
cd $(root) && echo && echo '$$ $(1)' && $(1)
endef

# build_preset <preset> <ON or OFF: tests> <target>: configures once (ninja repeats it when a CMake file or the set of
# sources changes), and builds all or one target. A given TORCH_DIR may differ from the last one, so it always
# configures; and a build that was begun without tests is configured again when they are wanted.
define build_preset
cd $(root) && folder=build/$(patsubst release,.,$(1)) && \
if [ ! -f $$folder/build.ninja ]; then cmake --preset $(1) $(torch_option) -DSTARTRAIL_TESTS=$(2); \
elif [ $(2) = ON ] && grep -q STARTRAIL_TESTS:BOOL=OFF $$folder/CMakeCache.txt; then \
  cmake --preset $(1) $(torch_option) -DSTARTRAIL_TESTS=ON; \
elif [ -n '$(torch_option)' ]; then cmake --preset $(1) $(torch_option); fi && \
cmake --build --preset $(1) $(if $(3),--target $(3))
endef
