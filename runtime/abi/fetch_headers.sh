#!/bin/bash
# usage: fetch_headers.sh FOLDER [SUITE]      SUITE: forky (API 23, default) or experimental (a newer API)
# Unpacks the headers of Debian's libonnxruntime-dev into FOLDER, for the target `abi_check` only. It uses an apt root of
# its own: no root rights, nothing installed. The archive is the one that this machine's apt uses, or $DEBIAN_ARCHIVE.
set -euo pipefail
folder=$(realpath -m "$1")
suite=${2:-forky}
archive=${DEBIAN_ARCHIVE:-$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 2>/dev/null |
  awk '!/security/ && /debian/ {print $1; exit}')}
if [ -z "$archive" ]; then
  echo "no Debian archive in this machine's apt sources; set DEBIAN_ARCHIVE" >&2
  exit 1
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{lists/partial,cache/archives/partial} "$folder"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main" > "$root/sources.list"
: > "$root/status"
options=(
  -o Dir::State="$root" -o Dir::State::lists="$root/lists" -o Dir::State::status="$root/status"
  -o Dir::Cache="$root/cache" -o Dir::Etc::SourceList="$root/sources.list" -o Dir::Etc::SourceParts=/nonexistent
  -o APT::Architecture="$(dpkg --print-architecture)" -o APT::Sandbox::User= -o Debug::NoLocking=1
)
apt-get "${options[@]}" -qq update
(cd "$root" && apt-get "${options[@]}" -qq download libonnxruntime-dev)
dpkg-deb -x "$root"/libonnxruntime-dev_*.deb "$root/unpacked"
cp -r "$root/unpacked/usr/include/onnxruntime/." "$folder/"
cp "$root/unpacked/usr/share/doc/libonnxruntime-dev/copyright" "$folder/COPYRIGHT"
if [ ! -f "$folder/onnxruntime_ep_c_api.h" ]; then
  echo "suite $suite is too old: its header has no execution provider plug-ins" >&2
  exit 1
fi
sed -n 's/^#define ORT_API_VERSION */API /p' "$folder/onnxruntime_c_api.h"
