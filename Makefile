# make sweep   the main job: measure the catalogue on this machine's simulated engine, and write the report
# make test    all tests that need nothing but this folder
# make test-long  those that take a minute or more each, and what hosts with systemd show as well (make test-hosts)
# make lint    ansible-lint (production) and ruff
# make test-hosts   every Molecule scenario, on hosts with a real systemd (needs root on Debian; tests/hosts/README.md)
# make chaos    faults at random moments of sweeps, and a table of what was survived (CHAOS=200 rounds, CHAOS_SEED=7;
#               CHAOS_OPTIONS=--playbooks: the real playbooks, a minute or two a round; docs/chaos.md)
# make test-install   the real installation of the engine, about 10 GB and some minutes (docs/install.md)
# make clean   stop what runs here and remove what the others made
PYTHON ?= python3
BIN := .venv/bin
# Everything stays in this folder: Ansible's own files too.
export ANSIBLE_HOME := $(CURDIR)/.ansible
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What a sweep is told: here to try also what the plan says will not fit, so that a newcomer sees a failure named.
SWEEP ?= --confidence quick -e plan=off

.PHONY: sweep test test-long chaos test-hosts test-install lint clean format lock

sweep: $(BIN)/.controller
	@shardsweep sweep $(SWEEP)

# The tests' own folders lie in the checkout too: their hosts' environments are installed there.
test: $(BIN)/.test
	@mkdir -p .cache
	@$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --basetemp $(CURDIR)/.cache/pytest -m '$(MARKED)' $(PYTEST)

MARKED ?= not long
test-long: MARKED := long
test-long: test

CHAOS ?= 20
CHAOS_SEED ?= 1
chaos: $(BIN)/.test
	@$(BIN)/python tests/chaos/run.py --rounds $(CHAOS) --seed $(CHAOS_SEED) $(CHAOS_OPTIONS)

test-hosts: $(BIN)/.test
	@$(BIN)/python tests/hosts/run.py $(HOSTS)

test-install: $(BIN)/.test
	@$(BIN)/python tests/install/run.py --record docs/evidence/install $(INSTALL)

lint: $(BIN)/.test
	@ruff check .
	@ruff format --check .
	@ansible-lint --offline

format: $(BIN)/.test
	@ruff check --fix . && ruff format .

# A marker says which lock the environment was made from; a changed lock makes it anew.
$(BIN)/.controller: requirements/controller.txt pyproject.toml | $(BIN)/python
	@echo "Installing what a sweep needs into .venv ..."
	@$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement requirements/controller.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(BIN)/.test: requirements/test.txt $(BIN)/.controller
	@echo "Installing what the tests need into .venv ..."
	@$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement requirements/test.txt
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Shardsweep needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 sweep"; exit 1; }
	@$(PYTHON) -m venv .venv

# The locks, from pyproject.toml (needs uv).
LOCK = uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --quiet
lock:
	$(LOCK) --extra controller --group build --output-file requirements/controller.txt
	$(LOCK) --all-extras --group test --output-file requirements/test.txt
	$(LOCK) --extra supervisor --extra simulator --output-file roles/sglang_tools/files/requirements.txt
	tests/install/lock.sh 0.5.11 0.5.23

clean:
	@if [ -x $(BIN)/ansible-playbook ] && [ -e .shardsweep ]; then ansible-playbook playbooks/stop.yml >/dev/null || \
	  { echo "What runs here could not be stopped; see: ansible-playbook playbooks/status.yml"; exit 1; }; fi
	@rm -rf .shardsweep .venv .ansible .cache .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -prune -exec rm -rf {} +
