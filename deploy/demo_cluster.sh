#!/usr/bin/env bash
# deploy/demo_cluster.sh [--without-tier] [--rounds N] [--json FILE]
#
# One cache for a cluster, played on one machine: two machines, three kilnd and a redis-server that speaks mutual TLS.
# A training job compiles on machine-1, whose daemon is stopped then; on machine-2 the same job compiles nothing and
# uploads nothing. The counts in the table are the daemons' own (kilnctl stats).
#
#   --without-tier  the control: the daemons share nothing, and machine-2 compiles everything
#   --rounds N      starts N processes of each kind in turn and prints their medians; default 1; from 5 on a start
#                   on machine-2 of more than 1.1 times a later one's on machine-1 is a problem
#   --json FILE     the table's rows, for programs
#   --help          prints this
#
# A machine is a network, mount, ipc, pid and host name of its own; its HOME, TMPDIR, XDG_RUNTIME_DIR,
# TORCHINDUCTOR_CACHE_DIR and kilnd's store are on a tmpfs that no other machine sees. The third kilnd stands beside
# the redis-server and is called from machine-2, by mutual TLS. All of it ends with this script, however it ends.
#
# Exit codes: 0 as promised, 1 not so, or a part failed, 2 wrong usage, 3 something is missing here (which is told).
# Takes root, and kiln in .venv (deploy/setup.sh); KILN_PYTHON names another Python that has kiln and transformers.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${KILN_PYTHON:-$root/.venv/bin/python}
hub=10.77.0.1
usage() { sed -n '2,/^set -euo/{/^#/s/^# \{0,1\}//p}' "$0"; }
missing() { printf 'demo_cluster.sh: %s\n' "$@" >&2; exit 3; }

without_tier=no rounds=1 json=
while [ $# -gt 0 ]; do
  case "$1" in
    --without-tier) without_tier=yes ;;
    --rounds) rounds=${2:-}; shift || true ;;
    --json) json=${2:-}; shift || true ;;
    --help | -h) usage; exit 0 ;;
    *) echo "demo_cluster.sh: \"$1\" is no option; --help lists them" >&2; exit 2 ;;
  esac
  shift || true
done
[[ $rounds =~ ^[1-9][0-9]?$ ]] || { echo "demo_cluster.sh: --rounds takes a number from 1 to 99" >&2; exit 2; }
[ -z "$json" ] || json=$(realpath -m "$json")

# ---- Outside: what is needed, and that nothing stays ------------------------------------------------------------
if [ -z "${KILN_DEMO_WORK:-}" ]; then
  [ "$(id -u)" -eq 0 ] || missing "namespaces and networks take root: sudo $0"
  for pair in ip:iproute2 unshare:util-linux nsenter:util-linux setpriv:util-linux redis-server:redis-server \
      redis-cli:redis-tools stunnel:stunnel4 openssl:openssl; do
    command -v "${pair%%:*}" >/dev/null || missing "${pair%%:*} is not here: apt-get install ${pair#*:}"
  done
  [ -x "$python" ] || missing "$python is not here: deploy/setup.sh makes it, or KILN_PYTHON names another"
  "$python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("kiln", "torch", "transformers"))))' \
    || missing "$python lacks kiln, torch or transformers: deploy/setup.sh"
  isolated=(unshare --uts --net --mount --ipc --pid --fork --kill-child --mount-proc --)
  why=$("${isolated[@]}" true 2>&1) \
    || missing "this host allows no namespaces (${why:-unshare failed}):" \
      "in a container, run it with --privileged, or with CAP_SYS_ADMIN, CAP_NET_ADMIN and without a seccomp profile"

  KILN_DEMO_WORK=$(mktemp -d "${TMPDIR:-/tmp}/kiln-demo-XXXXXX")
  export KILN_DEMO_WORK
  options=(--rounds "$rounds")
  [ $without_tier = no ] || options+=(--without-tier)
  [ -z "$json" ] || options+=(--json "$json")
  # Whoever ends, ends all: the first process of the namespaces is killed, and the kernel takes the rest.
  setpriv --pdeathsig KILL "${isolated[@]}" "$BASH" "$0" "${options[@]}" &
  outer=$!
  leave() {
    trap - INT TERM HUP
    # unshare ends when its first process has, and that one when all others have: to wait for it is to wait for all.
    local first
    first=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null) || true
    kill -KILL ${first:-"$outer"} 2>/dev/null || true
    wait "$outer" 2>/dev/null || true
    rmdir "$KILN_DEMO_WORK" 2>/dev/null || true
  }
  trap leave EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  code=0
  wait "$outer" || code=$?
  exit "$code"
fi

# ---- Inside: the machines ---------------------------------------------------------------------------------------
work=$KILN_DEMO_WORK
unset KILN_DEMO_WORK
mount -t tmpfs -o mode=0700,size=2g kiln-demo "$work"
hostname hub
cd "$work"
binaries=$("$python" -c 'import importlib.util as u; print(u.find_spec("kiln").submodule_search_locations[0])')/bin
say() { printf '%s\n' "$*" >&2; }
fail() {
  printf '\ndemo_cluster.sh: %s; the ends of the logs:\n' "$1" >&2
  find . -maxdepth 1 -name '*.log' -size +0 -exec tail -n 8 {} + >&2
  exit 1
}
await() {  # SECONDS WHAT COMMAND…
  local seconds=$1 what=$2 end=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt "$end" ] || fail "$what after $seconds s"
    sleep 0.1
  done
}

ip link set lo up
ip link add kiln type bridge
ip addr add $hub/24 dev kiln
ip link set kiln up

declare -A first_process  # of each machine, in the hub's pid namespace
make_machine() {  # NAME ADDRESS
  unshare --uts --net --mount --ipc --pid --fork --kill-child --mount-proc -- \
    sh -c 'mount -t tmpfs -o mode=0700,size=2g kiln-demo "$1" && hostname "$2" && exec sleep infinity' sh "$work" "$1" &
  local shell=$!
  await 10 "$1 did not start" grep -q . "/proc/$shell/task/$shell/children"
  first_process[$1]=$(tr -d ' ' <"/proc/$shell/task/$shell/children")
  await 10 "$1 did not start" grep -q sleep "/proc/${first_process[$1]}/comm"
  ip link add "$1" type veth peer name eth0 netns "${first_process[$1]}"
  ip link set "$1" master kiln up
  on "$1" ip link set lo up
  on "$1" ip addr add "$2/24" dev eth0
  on "$1" ip link set eth0 up
  on "$1" mkdir -m 0700 home tmp run torch
}
# Runs a command on a machine, which sees nothing of the caller's environment.
on() {  # NAME COMMAND…
  local machine=$1
  shift
  nsenter --target "${first_process[$machine]}" --all --wdns="$work" -- \
    env -i PATH="$PATH" HOME="$work/home" TMPDIR="$work/tmp" XDG_RUNTIME_DIR="$work/run" \
    TORCHINDUCTOR_CACHE_DIR="$work/torch" HF_HUB_OFFLINE=1 "$@"
}
give() { tar -c "${@:2}" | on "$1" tar -x --no-same-owner; }  # NAME FILE…

# ---- Keys, certificates, the engine -----------------------------------------------------------------------------
say "certificates, signing keys and a redis-server with mutual TLS"
KILN_CERT_HOSTS=IP:$hub "$root/deploy/make_dev_certs.sh" certs kilnd=spiffe://example.org/kilnd \
  train=spiffe://example.org/train >/dev/null
umask 077
daemons=(machine-1 machine-2 hub)
for name in "${daemons[@]}"; do openssl genpkey -algorithm ed25519 -out "$name.pem"; done
openssl rand -hex 16 >tier.password
mkdir redis
printf 'user default off\nuser kiln on >%s ~kiln:1:train:* %s\n' "$(cat tier.password)" \
  "+@read +@write +@scripting +@connection -@dangerous" >redis/users.acl
redis-server --port 0 --bind $hub --tls-port 6379 --tls-cert-file "$work/certs/server.crt" \
  --tls-key-file "$work/certs/server.key" --tls-ca-cert-file "$work/certs/ca.crt" --tls-auth-clients yes --aclfile "$work/redis/users.acl" --dir "$work/redis" --save "" \
  --appendonly no --maxmemory 512mb --maxmemory-policy volatile-lru >redis.log 2>&1 &

# The end of a daemon's tunnel to the engine: a unix socket that only its user may open.
cat >stunnel.conf <<CONFIG
foreground = yes
syslog = no
debug = warning
pid =
client = yes
cert = $work/certs/kilnd.crt
key = $work/certs/kilnd.key
CAfile = $work/certs/ca.crt
verifyChain = yes
checkIP = $hub
[tier]
accept = $work/tier.sock
connect = $hub:6379
CONFIG

config_of() {  # NAME
  local other trusted= identities= tls=
  for other in "${daemons[@]}"; do
    [ "$other" != "$1" ] || continue
    trusted+="  trusted { namespaces: \"train\" public_key: \""
    trusted+="$(openssl pkey -in "$other.pem" -pubout -outform DER | tail -c 32 | base64)\" }"$'\n'
  done
  if [ "$1" = hub ]; then
    identities='identities: "spiffe://example.org/train"'
    tls="tcp: \"$hub:7711\" tls { certificate: \"$work/certs/server.crt\" key: \"$work/certs/server.key\""
    tls+=" authority: \"$work/certs/ca.crt\" }"
  fi
  printf 'listen {\n  unix_socket: "%s/kilnd/kilnd.sock" %s\n' "$work" "$tls"
  printf '  tenants { name: "train" uids: 0 %s }\n}\n' "$identities"
  printf 'signing {\n  key_file: "%s/%s.pem"\n%s}\nstore { directory: "%s/store" }\n' "$work" "$1" "$trusted" "$work"
  [ $without_tier = yes ] \
    || printf 'tier { addresses: "unix:%s/tier.sock" user: "kiln" password_file: "%s/tier.password" }\n' "$work" "$work"
}
for name in "${daemons[@]}"; do config_of "$name" >"$name.textproto"; done

on_hub() { shift; "$@"; }
ask() {  # NAME COMMAND…: its kilnd, by kilnctl
  local run=on
  [ "$1" != hub ] || run=on_hub
  $run "$1" "$binaries/kilnctl" --address "unix:$work/kilnd/kilnd.sock" --json "${@:2}"
}
is_connected() { ask "$1" status | grep -q '"connected": *true'; }
declare -A daemon_of
start_daemon() {  # NAME
  local run=on
  [ "$1" != hub ] || run=on_hub
  $run "$1" mkdir -p kilnd
  $run "$1" "$binaries/kilnd" --config "$work/$1.textproto" >>"$work/$1.log" 2>&1 &
  daemon_of[$1]=$!
  await 30 "kilnd of $1 does not answer" ask "$1" status
  [ $without_tier = yes ] || await 30 "kilnd of $1 does not reach the tier" is_connected "$1"
}
stop_daemon() {  # NAME
  local run=on pid
  [ "$1" != hub ] || run=on_hub
  pid=$(ask "$1" status | sed -n 's/^ *"pid": *"\{0,1\}\([0-9]*\).*/\1/p' | head -1)
  $run "$1" kill -TERM "$pid"
  wait "${daemon_of[$1]}" || fail "kilnd of $1 did not end well"
}

say "two machines and three kilnd"
make_machine machine-1 10.77.0.11
make_machine machine-2 10.77.0.12
for name in machine-1 machine-2; do
  give $name "$name.textproto" "$name.pem" tier.password stunnel.conf certs/ca.crt certs/kilnd.crt certs/kilnd.key \
    certs/train.crt certs/train.key
  on $name stunnel stunnel.conf >"$name.stunnel.log" 2>&1 &
done
stunnel stunnel.conf >hub.stunnel.log 2>&1 &
for name in "${daemons[@]}"; do start_daemon "$name"; done

# ---- The job ----------------------------------------------------------------------------------------------------
# A process of the job, with what its daemon counted meanwhile, as results/NAME.
mkdir results
job() {  # NAME MACHINE DAEMON VARIABLE=…
  local name=$1 machine=$2 daemon=$3 what
  say "  $name"
  for what in stats status; do ask "$daemon" $what >"results/$name.before.$what"; done
  on "$machine" env KILN_FALLBACK=error KILN_JOB=demo "${@:4}" timeout 900 "$python" -W ignore \
    "$root/deploy/quickstart_train.py" --backend kiln --steps 3 --layers 2 --width 128 --json result.json \
    >"$name.log" 2>&1 || fail "the job failed: $name"
  on "$machine" cat result.json >"results/$name.job"
  for what in stats status; do ask "$daemon" $what >"results/$name.after.$what"; done
}
address_of="KILN_ADDRESS=unix:$work/kilnd/kilnd.sock"
# As many writes as there were compiles.
is_written() {
  "$python" -c 'import json, sys
stats, status = (json.loads(text) for text in sys.argv[1:])
sys.exit(int(status["tier"]["writes"]) < int(stats["compiles"]))' "$(ask "$1" stats)" "$(ask "$1" status)"
}

say "the job"
job "machine-1, first process" machine-1 machine-1 "$address_of"
[ $without_tier = yes ] || await 30 "what machine-1 compiled is not in the tier" is_written machine-1
for ((round = 1; round <= rounds; ++round)); do
  [ "$round" -eq 1 ] || start_daemon machine-1
  on machine-1 rm -rf torch
  job "machine-1, later process, $round" machine-1 machine-1 "$address_of"
  job "machine-1, with AOTAutograd's cache, $round" machine-1 machine-1 "$address_of"
  stop_daemon machine-1
  if [ "$round" -gt 1 ]; then  # a machine that has never seen the job
    stop_daemon machine-2
    on machine-2 rm -rf store torch
    start_daemon machine-2
  fi
  job "machine-2, first process, $round" machine-2 machine-2 "$address_of"
done
on machine-2 rm -rf torch
job "machine-2, by the hub's kilnd" machine-2 hub "KILN_ADDRESS=$hub:7711" KILN_TLS_CA="$work/certs/ca.crt" \
  KILN_TLS_CERT="$work/certs/train.crt" KILN_TLS_KEY="$work/certs/train.key"

options=()
[ $without_tier = no ] || options+=(--without-tier)
[ -z "$json" ] || options+=(--json "$json")
"$python" "$root/deploy/demo_cluster_report.py" "${options[@]}" results
