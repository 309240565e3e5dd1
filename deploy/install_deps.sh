#!/usr/bin/env bash
# Installs what kiln is built and run with, from Debian 12's own packages. Root, or a user with sudo.
# Quick when everything is there. `--tests` adds an emulator of AArch64 and its compiler, which some tests ask for; `--dev`
# what only contributors need (clang-format, clang-tidy, gdb).
set -euo pipefail

packages=(
  # compiler and build
  g++ binutils cmake ninja-build pkg-config ccache mold patchelf
  # LLVM, linked into kiln-worker (libpolly: LLVM's CMake files ask for it); tools: FileCheck
  llvm-22-dev llvm-22-tools libpolly-22-dev
  # RPC and messages
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  # the store, and what its static library needs
  librocksdb-dev libsnappy-dev liblz4-dev libbz2-dev zlib1g-dev libzstd-dev
  # the shared tier
  libhiredis-dev
  # the rest of the daemon and the tools
  libssl-dev libseccomp-dev libcli11-dev libspdlog-dev libfmt-dev libdtl-dev prometheus-cpp-dev
  # tests
  libgtest-dev libgmock-dev libmpfr-dev redis-server openssl stunnel4 iproute2 nftables
  # Python, for the wheel
  python3 python3-dev python3-venv ca-certificates
)
case "${1:-}" in
  "") ;;
  # kernels of AArch64, emulated; a shell that completes kilnctl's words
  --tests) packages+=(qemu-user-static g++-aarch64-linux-gnu libc6-dev-arm64-cross zsh) ;;
  --dev) packages+=(clang-22 clang-format-22 clang-tidy-22 libclang-rt-22-dev gdb) ;;
  *) echo "usage: $0 [--tests | --dev]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These packages are missing, and installing them takes root (there is no sudo here). As root, run:" >&2
    echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "packages: installing ${#missing[@]}: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
failed() {
  echo "Installing the packages failed (see above). LLVM 22 comes from Debian 12's security suite: check that" >&2
  echo "/etc/apt/sources.list* has bookworm, bookworm-updates and bookworm-security, then run this again." >&2
  exit 1
}
"${as_root[@]}" apt-get update -q || failed
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" \
  || failed
