#!/bin/sh
# Installs the Debian packages of the local desktop (osworld_rollouts/desktops/local/packages.txt) that are missing, and nothing else.
# As root it installs; otherwise it shows the command and asks. ASSUME_YES=1 answers for you; without a terminal nothing is assumed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
wanted=$(sed 's/#.*//' "$here/osworld_rollouts/desktops/local/packages.txt" | tr '\n' ' ')
missing=""
for name in $wanted git; do
    state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null || true)
    case "$state" in ii*) ;; *) missing="$missing $name" ;; esac
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "This machine has no apt-get. Install the equivalents of:$missing" >&2
    exit 6
fi
echo "System packages to install ($(echo "$missing" | wc -w), about 0.3 GB to download, 0.9 GB on disk):" >&2
echo " $missing" >&2
root=""
if [ "$(id -u)" != 0 ]; then
    if [ "${ASSUME_YES:-}" != 1 ]; then
        if [ ! -t 0 ]; then
            echo "Not root and no terminal to ask: run  sudo apt-get install -y --no-install-recommends$missing" >&2
            exit 6
        fi
        printf 'Install them with sudo? [y/N] ' >&2
        read -r answer
        case "$answer" in y* | Y*) ;; *) exit 6 ;; esac
    fi
    root=sudo
fi
$root apt-get update -qq
$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
