#!/usr/bin/env bash
# Runs the tests of this crate for aarch64, where the instruction set `neon` is, under user-mode qemu.
#
# For x86-64 Debian (12 or later). The emulator and the linker are Debian's packages, installed if missing (as root).
# The standard library for aarch64 is that of the toolchain in use, if `rustup target add aarch64-unknown-linux-gnu`
# put it there; otherwise compiler and library are Debian's (`rustc-web`, or `rustc` where that is new enough),
# unpacked into the user's cache, not installed. Exit code 77: this machine cannot run them, and a line says why.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
library=/usr/aarch64-linux-gnu # Debian's C library for the target
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

skip() {
  echo "neon: not tested: $*"
  exit 77
}

[ "$(uname -sm)" = "Linux x86_64" ] || skip "this is $(uname -sm), the script is for Linux x86_64"

missing=()
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
[ -e "$library/lib/libc.so.6" ] && [ -e "$library/lib/crt1.o" ] || missing+=(libc6-dev-arm64-cross)
if [ "${#missing[@]}" -gt 0 ]; then
  command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] || skip "missing ${missing[*]}, which apt-get installs as root"
  { timeout 300 apt-get update -q && timeout 600 apt-get install -qy --no-install-recommends "${missing[@]}"; } ||
    skip "apt-get could not install ${missing[*]}"
fi

# Succeeds if $1 can compile for the target and is new enough.
fits() {
  local version
  version=$("$1" --version 2>/dev/null | cut -d' ' -f2) || return 1
  [ "$(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1)" = "$oldest" ] || return 1
  compgen -G "$("$1" --print sysroot)/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null
}

# Unpacks Debian's compiler $1 with the standard libraries of both architectures; package lists of its own, so that
# the system's stay as they are.
unpack() {
  local options=(-q -o APT::Architecture=amd64 -o APT::Architectures=amd64,arm64
    -o Dir::State::lists="$cache/lists" -o Dir::Cache="$cache/apt" -o APT::Sandbox::User=root)
  rm -rf "$cache"
  mkdir -p "$cache/lists/partial" "$cache/apt/archives/partial" "$cache/packages" "$cache/root"
  timeout 300 apt-get "${options[@]}" update >"$cache/log" 2>&1 || true # one unreachable source need not matter
  local std=libstd-rust${1#rustc}-dev
  local shared llvm
  shared=$(apt-cache "${options[@]}" depends "$std" | sed -n 's/^ *Depends: \(libstd-rust-.*\)/\1/p' | head -n 1)
  [ -n "$shared" ] || return 1
  llvm=$(apt-cache "${options[@]}" depends "$shared" | sed -n 's/^ *Depends: \(libllvm.*\)/\1/p' | head -n 1)
  (cd "$cache/packages" && timeout 600 apt-get "${options[@]}" download \
    "$1" "$shared" ${llvm:+"$llvm"} "$std" "$std:arm64") >>"$cache/log" 2>&1 || return 1
  local package
  for package in "$cache"/packages/*.deb; do dpkg-deb -x "$package" "$cache/root"; done
  rm -r "$cache/packages" "$cache/lists" "$cache/apt"
  cat >"$cache/rustc" <<END
#!/bin/sh
LD_LIBRARY_PATH='$cache/root/usr/lib/x86_64-linux-gnu' exec '$cache/root/usr/bin/rustc' "\$@"
END
  chmod +x "$cache/rustc"
}

if ! fits rustc; then
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/weaklink-neon
  if ! fits "$cache/rustc"; then
    command -v apt-get >/dev/null || skip "rustc has no standard library for $target"
    { unpack rustc-web && fits "$cache/rustc"; } || { unpack rustc && fits "$cache/rustc"; } ||
      skip "rustc has no standard library for $target, and Debian has no rustc $oldest or later here"
  fi
  export RUSTC=$cache/rustc
fi

echo "neon: $("${RUSTC:-rustc}" --version), $(qemu-aarch64 --version | head -n 1)"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L $library"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A target folder of its own: another compiler would otherwise make the host's dependencies stale.
cargo test --release --package weaklink-kernels --lib --target "$target" --target-dir target/neon -- --nocapture |
  tee "$log"
ran=$({ grep -o '\bisa [a-z0-9]*' "$log" || true; } | sort | uniq -c | awk '{ printf "%s%s (%d)", sep, $3, $1; sep = ", " }')
echo "neon: instruction sets that ran, and how often a test said so: ${ran:-none}"
grep -q '\bisa neon' "$log" || { echo "neon: failed: the tests did not run it"; exit 1; }
