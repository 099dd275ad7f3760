# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: says what happens and how long it took, and brings what is missing.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export DEBIAN_FRONTEND=noninteractive
log_folder=build/log

building=(g++ cmake ninja-build ccache git libboost1.81-dev libcli11-dev
          libtomlplusplus-dev libfmt-dev libspdlog-dev libssl-dev libhwloc-dev)
testing=(doctest-dev dpkg-dev file clang-format clang-19 libclang-rt-19-dev etcd-server prometheus
         mandoc man-db iproute2 openssl universal-ctags procps munge slurmctld slurmd slurm-client zsh
         fish tcsh chromium g++-aarch64-linux-gnu qemu-user)
python=(python3 python3-venv)
# What these packages bring that would listen from now on; the tests start servers of their own.
services=(etcd prometheus munge slurmctld slurmd)
torch_version=2.13.0

# usage ARGUMENT EXPRESSION: for --help the comment at the top of the script is printed; what EXPRESSION
# does not match is refused.
usage() {
  local script=scripts/$(basename "$0")
  if [ "$1" = --help ] || [ "$1" = -h ]; then
    sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$script"
    exit 0
  elif ! [[ $1 =~ ^($2)$ ]]; then
    say "$script: error: '$1' is not known; $script --help says what is" >&2
    exit 2
  fi
}

now() { date +%s%N; }
seconds_since() { awk -v ns=$(($(now) - $1)) 'BEGIN { printf "%.1f s", ns / 1e9 }'; }
started=$(now)

bold='' dim='' red='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' plain=$'\e[0m'; fi
say() { printf '%s\n' "$@"; }
stop() { printf '%s%s%s\n' "$red" "$*" "$plain" >&2; exit 1; }

# progress NAME LOG: until it is killed, how far the compiler is, which Ninja writes as [n/m]: on a
# terminal in the line of the step, elsewhere as a line each half minute.
progress() {
  local at waited=0
  while sleep 1 >/dev/null 2>&1; do
    at=$(tail -c 4096 "$2" 2>/dev/null | grep -oE '^\[[0-9]+/[0-9]+\]' | tail -n 1)
    waited=$((waited + 1))
    if [ -n "$at" ] && [ -t 1 ]; then printf '\r  %-44s%s' "$1" "$at"
    elif [ -n "$at" ] && [ $((waited % ${PROGRESS_SECONDS:-30})) = 0 ]; then printf '\n    %-42s' "$at"; fi
  done
}

# lacks_network LOG: whether a download failed because no server could be reached, in the words of
# apt and pip, which repeat them for every file.
lacks_network() {
  grep -qE "Temporary failure resolving|Could not resolve|Network is unreachable|Could not connect to|\
Failed to establish a new connection|Name or service not known|No route to host" "$1"
}

# step NAME COMMAND...: one line when it begins, its time when it ends. The output goes to a log file
# that is shown if the command fails.
step() {
  local name=$1 log before watcher code=0
  log=$log_folder/$(tr -c 'a-zA-Z0-9\n' '-' <<<"$1").log before=$(now)
  shift
  mkdir -p "$log_folder"
  : >"$log"
  printf '  %-44s' "$name"
  progress "$name" "$log" &
  watcher=$!
  "$@" >"$log" 2>&1 </dev/null || code=$?
  { kill "$watcher" && wait "$watcher"; } 2>/dev/null
  if [ -t 1 ]; then printf '\r\e[K  %-44s' "$name"; fi
  if [ "$code" = 0 ]; then
    printf '%s%8s%s\n' "$dim" "$(seconds_since "$before")" "$plain"
  else
    printf '%sfailed%s %s\n' "$red" "$plain" "$(seconds_since "$before")"
    if lacks_network "$log"; then
      say "  No network: the servers it comes from cannot be reached. The details are in $log."
      return "$code"
    fi
    grep -E -A12 '^FAILED|error:|^E:' "$log" | head -60 || true
    say "  The last lines of $log:"
    tail -n 15 "$log" | sed 's/^/    /'
    return "$code"
  fi
}

can_be_root() { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -E "$@"; fi; }

# install_without_services NAME...: as root. Debian starts a server when it is installed and at each
# boot; policy-rc.d forbids the first, and links that are new afterwards are taken back.
install_without_services() {
  local policy=/usr/sbin/policy-rc.d before code=0 name
  boots() { find /etc/systemd/system /etc/rc[2-5].d -path '*.wants/*' -o -name 'S*' 2>/dev/null; }
  before=$(boots)
  if [ ! -e $policy ]; then
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
  fi
  apt-get install -y --no-install-recommends "$@" || code=$?
  before=$(grep -vxF "$before" <<<"$(boots)")
  for name in "${services[@]}"; do
    grep -q "/S[0-9]*$name\$" <<<"$before" && update-rc.d "$name" disable
    # It works for installation scripts only, which it knows by this variable.
    grep -q "/$name\.service\$" <<<"$before" &&
      DPKG_MAINTSCRIPT_PACKAGE=$name deb-systemd-helper disable "$name.service"
  done
  return $code
}

lists_read=''
is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# need_packages NAME...: what of these Debian packages is missing is installed.
need_packages() {
  local missing=() name
  if ! command -v apt-get >/dev/null; then
    say "  No apt-get here: these packages, or what they hold, must be installed by hand:" "$@"
    return
  fi
  for name in "$@"; do is_installed "$name" || missing+=("$name"); done
  if [ ${#missing[@]} = 0 ]; then
    say "  Packages: all $# there."
    return
  fi
  for name in libboost1.74-dev libboost-dev; do
    if is_installed "$name" && [[ " ${missing[*]} " == *" libboost1.81-dev "* ]]; then
      stop "$name is installed and cannot stay beside libboost1.81-dev, which elastrun needs." \
        "Remove it first: apt-get remove $name"
    fi
  done
  say "  Packages missing: ${missing[*]}"
  can_be_root || stop "Installing them needs root or sudo, and here is neither. As root:" \
    "apt-get install --no-install-recommends ${missing[*]}"
  [ -n "$lists_read" ] || step "read the package lists" as_root apt-get update || exit 1
  lists_read=yes
  step "install ${#missing[@]} packages" as_root bash -c "$(declare -p services)
    $(declare -f install_without_services); install_without_services \"\$@\"" _ "${missing[@]}" ||
    exit 1
  if [[ " ${missing[*]} " =~ " "(etcd-server|prometheus|slurmctld|slurmd)" " ]]; then
    say "  Their servers (${services[*]}) start neither now nor at boot."
  fi
}

has_torch() {
  "$1" -c 'from importlib.util import find_spec as f; exit(not (f("torch") and f("numpy")))' \
    2>/dev/null
}
torch_in() { "$1" -c 'import importlib.metadata as m; print(m.version("torch"))'; }

# need_torch: afterwards the first python3 in PATH has torch.
need_torch() {
  if [ -x .venv/bin/python3 ] && has_torch .venv/bin/python3; then
    PATH=$PWD/.venv/bin:$PATH
  elif ! command -v python3 >/dev/null || ! has_torch python3; then
    need_packages "${python[@]}"
    step "make the virtual environment .venv" python3 -m venv .venv || exit 1
    step "install torch $torch_version into it" \
      .venv/bin/pip install -q "torch==$torch_version" numpy || exit 1
    PATH=$PWD/.venv/bin:$PATH
  fi
  export PATH
  say "  torch $(torch_in python3), $(command -v python3)"
}

# need_oracles: what reads exported metrics in tests and benchmarks. Only into our own environment;
# elsewhere, and without them, those tests are skipped and say so.
oracles=(prometheus-client==0.26.0 opentelemetry-proto==1.45.2 opentelemetry-sdk==1.45.2
         tensorboard==2.21.0 jsonschema==4.26.0)
need_oracles() {
  python3 -c 'import prometheus_client, opentelemetry.proto, opentelemetry.sdk, tensorboard
import jsonschema' 2>/dev/null && return
  if [ "$(command -v python3)" = "$PWD/.venv/bin/python3" ]; then
    step "install ${#oracles[@]} readers of metrics into it" .venv/bin/pip install -q "${oracles[@]}" &&
      return
  fi
  say "  Not in this Python, tests that need them are skipped: ${oracles[*]}"
}

# need_frameworks: the trainers that --goodput auto is measured with, some 240 MB. As the oracles.
frameworks=(lightning==2.6.6 transformers==5.23.0 accelerate==1.15.0)
need_frameworks() {
  local find='from importlib.util import find_spec as f
exit(not (f("lightning") and f("transformers") and f("accelerate")))'
  python3 -c "$find" 2>/dev/null && return
  if [ "$(command -v python3)" = "$PWD/.venv/bin/python3" ]; then
    step "install Lightning and Hugging Face's trainer" \
      .venv/bin/pip install -q "torch==$torch_version" "${frameworks[@]}" && return
  fi
  say "  Not in this Python, tests that need them are skipped: ${frameworks[*]}"
}

# build PRESET [TARGET...]: configures and compiles.
build() {
  local preset=$1
  shift
  step "configure $preset" cmake --preset "$preset" \
    -D ELASTRUN_UNIT_TESTS="${ELASTRUN_UNIT_TESTS:-ON}" || return
  step "compile $preset" cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"}
}
