#!/usr/bin/env bash
# Installs what the tests, the demo and the benchmarks run besides Go: on
# Debian and Ubuntu, as root, and only what is missing. Safe to run again.
#
# usage: test/setup.sh [TOOL...]    without TOOL: everything
set -euo pipefail

# tool:package - a tool that is on PATH needs no package.
wanted=(
	cc:gcc                            # the race detector links with it
	fio:fio                           # benchmarks, data verification
	fusermount3:fuse3                 # unmounting by an ordinary user
	mkfs.ext4:e2fsprogs               # peer filesystem, foreign signatures
	mkfs.xfs:xfsprogs                 # peer filesystem, foreign signatures
	mkfs.ext2:e2fsprogs               # peer filesystem
	mkfs.btrfs:btrfs-progs            # peer filesystem
	mkswap:util-linux                 # foreign signatures
	mount:mount                       # peers on loop devices
	diff:diffutils                    # tree comparison
	ps:procps                         # leftover checks
	git:git                           # a repository as a workload
	sqlite3:sqlite3                   # a database as a workload
	tar:tar                           # archives, compared bit for bit
	rsync:rsync                       # copies, compared bit for bit
	setfacl:acl                       # ACLs for both
	setcap:libcap2-bin                # file capabilities for both
	qemu-aarch64-static:qemu-user-static # the arm64 flush modes
)
# Only when they are named: what guests with NVDIMMs are made with.
guests=(
	qemu-system-x86_64:qemu-system-x86
	mke2fs:e2fsprogs
	depmod:kmod
	modprobe:kmod
	xz:xz-utils
	gcc:gcc
	make:make
)
if [ $# -gt 0 ]; then
	wanted+=("${guests[@]}")
fi

# Large, and installed only when they are named.
named=(
	postgres:postgresql               # make soak: a database as a workload
)

# root also finds the tools of sbin when PATH does not name it. Debian keeps
# PostgreSQL out of it.
PATH=$PATH:/usr/sbin:/sbin
for dir in /usr/lib/postgresql/*/bin; do
	PATH=$PATH:$dir
done

missing=()
if [ $# -gt 0 ]; then
	wanted+=("${named[@]}")
fi
for entry in "${wanted[@]}"; do
	tool=${entry%%:*} package=${entry##*:}
	if [ $# -gt 0 ] && [[ " $* " != *" $tool "* ]]; then
		continue
	fi
	command -v "$tool" >/dev/null || missing+=("$package")
done
# The C library headers come with no tool of their own.
if [ $# -eq 0 ] && [ ! -e /usr/include/stdlib.h ]; then
	missing+=(libc6-dev)
fi

if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
		echo "setup: missing: ${missing[*]}; install these packages, or run as root on Debian or Ubuntu" >&2
		exit 1
	fi
	echo "setup: installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update
	apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ ! -e /dev/fuse ]; then
	modprobe fuse 2>/dev/null || true
fi
if [ ! -e /dev/fuse ]; then
	echo "setup: /dev/fuse is missing: load the kernel's fuse module (modprobe fuse), or pass the device into the container" >&2
	exit 1
fi
echo "setup: ready"
