#!/bin/sh
# Runs the unit tests of pkg/pmem, which has assembly of its own, for arm64 in
# QEMU's user mode emulation. Installs the emulator where it is missing and the
# user is root; QEMU names another one. Exit status: that of the tests, or 1
# without an emulator.
set -eu

cd "$(dirname "$0")/.."

find_qemu() {
	command -v "${QEMU:-qemu-aarch64-static}" || command -v qemu-aarch64
}

install_qemu() {
	[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 0
	apt-get install -y --no-install-recommends qemu-user-static >/dev/null 2>&1 || {
		apt-get update >/dev/null
		apt-get install -y --no-install-recommends qemu-user-static >/dev/null
	}
}

qemu=$(find_qemu) || { install_qemu && qemu=$(find_qemu); } || {
	echo "arm64.sh: no qemu-aarch64: install qemu-user-static" >&2
	exit 1
}

# Before 8.1 QEMU announces the persistent memory instructions DC CVAP and
# DC CVADP to programs in user mode, and then does not have them.
cpu=max
version=$("$qemu" --version | sed -n '1s/.*version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
major=${version% *} minor=${version#* }
if [ "$major" -lt 8 ] || { [ "$major" -eq 8 ] && [ "$minor" -lt 1 ]; }; then
	cpu=cortex-a57
	echo "arm64.sh: QEMU $major.$minor is older than 8.1: modes dccvap and dccvadp are NOT TESTED, all else is" >&2
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM

CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go test -c -o "$dir/pmem.test" ./pkg/pmem
cd pkg/pmem
PMEM_TEST_UNDER_QEMU=1 "$qemu" -cpu "$cpu" "$dir/pmem.test" -test.short -test.timeout 250s \
	-test.skip 'OnlyWriter|ByteFlow|UnsafeFiles' "$@" # these read the source, whatever the machine
