#!/usr/bin/env bash
# Installs what the nodes of the test cluster run besides Kubernetes itself: on
# Debian and Ubuntu, as root, and only what is missing. Safe to run again.
set -euo pipefail

# file:package
wanted=(
	/usr/bin/containerd:containerd
	/usr/sbin/runc:runc
	/usr/lib/cni/bridge:containernetworking-plugins
	/usr/sbin/iptables:iptables
	/usr/sbin/nft:nftables
	/usr/sbin/conntrack:conntrack
	/usr/sbin/ip:iproute2
	/bin/busybox:busybox-static
	/usr/bin/nsenter:util-linux
	/sbin/sysctl:procps
	/usr/bin/fio:fio
)
missing=()
for entry in "${wanted[@]}"; do
	[ -e "${entry%%:*}" ] || missing+=("${entry##*:}")
done
if [ ${#missing[@]} -eq 0 ]; then
	exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "cluster: missing: ${missing[*]}; install these packages, or run as root on Debian or Ubuntu" >&2
	exit 1
fi
echo "cluster: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
# The nodes have a containerd each; the machine needs the one no more than before.
if [[ " ${missing[*]} " == *" containerd "* ]] && command -v systemctl >/dev/null && systemctl is-active --quiet containerd; then
	systemctl disable --now containerd
fi
