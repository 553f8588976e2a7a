# SPDX-License-Identifier: Apache-2.0
#
# Builds the native library, and runs everything a developer runs: `make help` lists it.
# Mix calls `all` with MIX_APP_PATH, ERTS_INCLUDE_DIR and PLATFORM; a person calls the other targets.
# CC, CPPFLAGS, CFLAGS and LDFLAGS are the user's: they come after the project's own flags and so win.

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all help setup test test-c test-tsan demo demo-dns demo-replicas check check-format bench format clean FORCE
.SECONDARY:

CORE := $(wildcard c_src/core/*.c)
NIF  := $(wildcard c_src/nif/*.c)

ERTS_INCLUDE_DIR ?= $(shell erl -noshell -eval 'io:put_chars(code:root_dir() ++ "/usr/include"), halt().')

# Elixir wants UTF-8 and warns about any other locale.
LOCALE := $(or $(LC_ALL),$(LC_CTYPE),$(LANG))
ifeq ($(findstring utf8,$(subst -,,$(subst UTF,utf,$(LOCALE)))),)
export LC_ALL := C.UTF-8
export ELIXIR_ERL_OPTIONS := +fnu $(ELIXIR_ERL_OPTIONS)
endif

## Flags

WARNINGS := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes
INCLUDES  = -Ic_src/core -isystem "$(ERTS_INCLUDE_DIR)"
HARDENED := -fvisibility=hidden -fstack-protector-strong
# The core is many small functions in many files: inlined across them, a report costs a third less.
LTO      := $(shell echo 'int main(void) { return 0; }' | $(CC) -x c -flto -o /dev/null - 2>/dev/null && echo -flto)
C_FLAGS   = -std=c11 -O2 $(LTO) -fPIC -pthread $(HARDENED) $(WARNINGS) $(INCLUDES) $(CPPFLAGS) $(CFLAGS)

# CROSSCOMPILE is set by Nerves, whose targets are never macOS.
ifeq ($(CROSSCOMPILE)$(shell uname -s),Darwin)
LINK_FLAGS = -bundle -undefined dynamic_lookup -pthread $(LDFLAGS)
else
LINK_FLAGS = -shared -pthread -Wl,-z,relro,-z,now $(LDFLAGS)
endif

## The native library

# One folder of objects for each platform, so that changing the OTP release, or sharing the build folder with a
# container, never mixes them.
OBJ     := $(MIX_APP_PATH)/obj-$(PLATFORM)
OBJECTS := $(patsubst c_src/%.c,$(OBJ)/%.o,$(CORE) $(NIF))
BUILT   := $(OBJ)/external_service.so
LIBRARY := $(MIX_APP_PATH)/priv/external_service.so

ifdef MIX_APP_PATH

# A running VM may have the library mapped, and writing into a mapped file kills that VM: so the new one is copied to a
# name of its own and then renamed, and only when it differs.
all: $(BUILT)
	@cmp -s $(BUILT) $(LIBRARY) || { mkdir -p $(dir $(LIBRARY)) && \
	    cp $(BUILT) $(LIBRARY).$$$$ && mv -f $(LIBRARY).$$$$ $(LIBRARY); }

else

all:
	mix compile

endif

$(BUILT): $(OBJECTS) $(OBJ)/command
	@echo "  LD  $(@F)"
	@$(CC) $(C_FLAGS) -o $@.$$$$ $(OBJECTS) $(LINK_FLAGS) && mv -f $@.$$$$ $@

$(OBJ)/%.o: c_src/%.c $(OBJ)/command
	@mkdir -p $(@D)
	@echo "  CC  $<"
	@$(CC) $(C_FLAGS) -MMD -MP -c -o $@ $<

# What the objects were built with. Its time changes only when the flags or the list of files do.
$(OBJ)/command: export COMMAND = $(CC) $(C_FLAGS) $(OBJECTS) $(LINK_FLAGS)
$(OBJ)/command: FORCE
	@mkdir -p $(@D)
	@[ "$$COMMAND" = "$$(cat $@ 2>/dev/null)" ] || printf '%s\n' "$$COMMAND" > $@

## The core's own tests: each test/c/*_test.c is a cmocka program, each test/c/*_stress.c a program for ThreadSanitizer.
## Other files in test/c are linked into all of them. Nothing here is built where Mix, or a user, would load it.

SHARED := $(filter-out %_test.c %_stress.c,$(wildcard test/c/*.c))

ASAN := _build/c/asan
TSAN := _build/c/tsan
ASAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=thread

TESTS    := $(patsubst %.c,$(ASAN)/%,$(wildcard test/c/*_test.c))
STRESSES := $(patsubst %.c,$(TSAN)/%,$(wildcard test/c/*_stress.c))

# cmocka 2 deprecates some names of cmocka 1, which has no others for them.
TEST_C_FLAGS = -std=c11 -pthread $(WARNINGS) -Wno-deprecated-declarations -Ic_src/core -Itest/c \
    -include test/c/cas_hook.h $(CPPFLAGS) $(CFLAGS)

$(ASAN)/%.o: %.c Makefile | setup
	@mkdir -p $(@D)
	@$(CC) $(TEST_C_FLAGS) $(ASAN_FLAGS) -MMD -MP -c -o $@ $<

$(TSAN)/%.o: %.c Makefile | setup
	@mkdir -p $(@D)
	@$(CC) $(TEST_C_FLAGS) $(TSAN_FLAGS) -MMD -MP -c -o $@ $<

$(ASAN)/%_test: $(ASAN)/%_test.o $(patsubst %.c,$(ASAN)/%.o,$(CORE) $(SHARED))
	@$(CC) $(ASAN_FLAGS) -pthread -o $@ $^ $(LDFLAGS) -lcmocka

$(TSAN)/%_stress: $(TSAN)/%_stress.o $(patsubst %.c,$(TSAN)/%.o,$(CORE) $(SHARED))
	@$(CC) $(TSAN_FLAGS) -pthread -o $@ $^ $(LDFLAGS) -lcmocka

# ThreadSanitizer can not place its memory under every layout the kernel picks; without randomisation it always can.
FIXED_LAYOUT = $(shell setarch -R true 2>/dev/null && echo setarch -R)

# Runs every program of the list, then fails if any of them did.
run_all = @failed=; for program in $(2); do \
	echo "== $$program"; $(1) $$program || failed="$$failed $$program"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

## What people call

help:
	@echo "make                 build the library and its native part, through mix"
	@echo "make test            install what is missing, then run all tests"
	@echo "make demo            install what is missing, then run examples/demo.exs"
	@echo "make demo-dns        install what is missing, then run examples/dns_cache/demo.exs"
	@echo "make demo-replicas   install what is missing, then run examples/replicas/demo.exs"
	@echo "make check           formatting, warnings, layering, static analysis"
	@echo "make test-c          the C core alone, under the address and undefined behaviour sanitizers"
	@echo "make test-tsan       the C core's stress programs under the thread sanitizer"
	@echo "make bench           measure"
	@echo "make format          format all Elixir and C"
	@echo "make clean           remove what was built"

setup:
	@script/setup

test: setup test-c
	mix test

test-c: $(TESTS)
	$(call run_all,,$(TESTS))

test-tsan: $(STRESSES)
	$(call run_all,$(FIXED_LAYOUT),$(STRESSES))

demo: setup
	mix run examples/demo.exs

demo-dns: setup
	mix run examples/dns_cache/demo.exs

demo-replicas: setup
	mix run examples/replicas/demo.exs

BENCH := _build/c/core_bench

bench: setup $(BENCH)
	$(BENCH)
	mix run bench/run.exs

$(BENCH): bench/core_bench.c $(CORE) | setup
	@mkdir -p $(@D)
	@$(CC) $(C_FLAGS) -o $@ $^

## Checks

C_FILES = $(shell find c_src test bench examples -name '*.[ch]')

check: setup check-format
	mix compile --force --warnings-as-errors
	mix xref graph --format cycles --fail-above 0
	@echo "The core knows no Erlang"; ! grep -rnE 'erl_nif\.h|enif_' c_src/core
	@for cc in gcc clang; do \
	    echo "$$cc -Werror"; \
	    for file in $(CORE) $(NIF); do $$cc -Werror $(C_FLAGS) -c -o /dev/null $$file || exit 1; done; \
	    for file in $(wildcard test/c/*.c); do $$cc -Werror $(TEST_C_FLAGS) -c -o /dev/null $$file || exit 1; done; \
	done
	cppcheck --quiet --std=c11 --enable=warning,performance,portability --error-exitcode=1 --inline-suppr \
	    --suppress=toomanyconfigs --suppress='*:$(ERTS_INCLUDE_DIR)/*' -Ic_src/core -I"$(ERTS_INCLUDE_DIR)" c_src

# Each version of a formatter has it a little differently. The sources are as those of Debian 12 have them.
check-format: setup
	@if elixir --version | grep -q '^Elixir 1\.14\.'; then mix format --check-formatted; \
	    else echo "The format of the Elixir files is not checked: that takes Elixir 1.14"; fi
	@if clang-format --version | grep -q ' version 14\.'; then clang-format --dry-run -Werror $(C_FILES); \
	    else echo "The format of the C files is not checked: that takes clang-format 14"; fi

format:
	mix format
	clang-format -i $(C_FILES)

clean:
	rm -rf _build/c
	mix clean

-include $(OBJECTS:.o=.d) $(shell find $(ASAN) $(TSAN) -name '*.d' 2>/dev/null)
