#!/bin/bash
# Prepares a Debian 12-like machine for the tests and the demo: packages, libvirt's account and a guest
# kernel. Run as root, as often as you like: well under a second when all is there.
# Arguments are further lists of packages, as tests/cluster/debian-packages.txt.
#
# The kernel is unpacked outside the repository, in ${XDG_CACHE_HOME:-$HOME/.cache}/confidential-csi/kernel,
# where tests/lab/guest_image.py looks for it; and Prometheus beside it, for tests/tools/prometheus.py.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lists=("$here/debian-packages.txt" "$@")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/confidential-csi
# Debian's name for "the current kernel without drivers for real hardware": it has dm-crypt and virtiofs.
kernel_metapackage=linux-image-cloud-amd64

fail() {
  echo "setup.sh: $*" >&2
  exit 1
}

[ "$(id -u)" = 0 ] || fail "must run as root: it installs packages, and the guest needs libvirt"
command -v apt-get >/dev/null || fail "apt-get not found: a Debian 12-like machine is needed"
[ "$(uname -m)" = x86_64 ] || fail "x86_64 is needed: the guest runs the host's own programs"

updated=no
refresh_package_lists() {
  [ "$updated" = no ] || return 0
  echo "setup.sh: refreshing the package lists"
  # A mirror may not answer for a moment, and another process may have the lock of the lists.
  apt-get update -qq || { sleep 15 && apt-get update -qq; } ||
    fail "apt-get update failed: is a Debian mirror reachable?"
  updated=yes
}

# Says whether every package named has an installable version in the package lists.
known() {
  apt-cache policy "$@" 2>/dev/null |
    awk -v wanted=$# '/Candidate:/ { found += ($2 != "(none)") } END { exit found < wanted }'
}

install_missing_packages() {
  local wanted missing
  mapfile -t wanted < <(grep -hv '^#' "${lists[@]}")
  mapfile -t missing < <(
    dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
      awk '$2 == "installed" { print $1 }' | sort -u |
      comm -13 - <(printf '%s\n' "${wanted[@]}" | sort -u)
  )
  [ "${#missing[@]}" -gt 0 ] || return 0
  echo "setup.sh: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local install=(apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300)
  known "${missing[@]}" || refresh_package_lists
  # The lists may be older than the mirror, or an installation was killed: mend both, and try once more.
  "${install[@]}" "${missing[@]}" >/dev/null ||
    { refresh_package_lists && dpkg --configure -a >/dev/null &&
      "${install[@]}" "${missing[@]}" >/dev/null; } ||
    fail "apt-get could not install: ${missing[*]}"
}

# libvirtd will not start without it; libvirt's own package with a unit for systemd would make it.
create_libvirt_account() {
  getent group libvirt-qemu >/dev/null || groupadd -r libvirt-qemu
  getent passwd libvirt-qemu >/dev/null ||
    useradd -r -g libvirt-qemu -d /nonexistent -s /usr/sbin/nologin libvirt-qemu
}

# Leaves a tree with boot/vmlinuz, lib/modules/VERSION with its indexes, and the file "version". In a
# subshell, whose end lets go of the lock and removes what is half done.
unpack_kernel() (
  [ ! -s "$cache/kernel/version" ] || return 0
  mkdir -p "$cache"
  # Two checkouts may be set up at once: the second waits, and finds the kernel.
  exec 9>"$cache/lock"
  flock 9
  [ ! -s "$cache/kernel/version" ] || return 0
  rm -rf "$cache"/kernel.?????? # of a set-up that was killed: we have the lock
  echo "setup.sh: downloading a guest kernel"
  known "$kernel_metapackage" || refresh_package_lists
  work=$(mktemp -d "$cache/kernel.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # apt's download user may not write to root's home: the files are fetched as root, on purpose.
  download() {
    package=$(apt-cache depends --no-recommends --no-suggests "$kernel_metapackage" |
      awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
    [ -n "$package" ] || return 1
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package")
  }
  download || { refresh_package_lists && download; } || fail "could not download the package behind $kernel_metapackage"
  mkdir "$work/tree"
  dpkg -x "$work"/*.deb "$work/tree"
  version=$(ls "$work/tree/lib/modules")
  depmod -b "$work/tree" "$version"
  ln -s "vmlinuz-$version" "$work/tree/boot/vmlinuz"
  echo "$version" >"$work/tree/version"
  rm -rf "$cache/kernel"
  mv -T "$work/tree" "$cache/kernel"
)

# Not installed, since the package would start a service.
unpack_prometheus() (
  [ ! -d "$cache/prometheus" ] || return 0
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  [ ! -d "$cache/prometheus" ] || return 0
  rm -rf "$cache"/prometheus.??????
  echo "setup.sh: downloading Prometheus"
  known prometheus || refresh_package_lists
  work=$(mktemp -d "$cache/prometheus.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  download() { (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root prometheus); }
  download || { refresh_package_lists && download; } || fail "could not download the package prometheus"
  dpkg -x "$work"/*.deb "$work/tree"
  mv -T "$work/tree/usr/bin" "$cache/prometheus"
)

install_missing_packages
create_libvirt_account
unpack_kernel
unpack_prometheus
