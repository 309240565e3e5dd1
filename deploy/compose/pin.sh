#!/bin/sh
# deploy/compose/pin.sh [DIR]
#
# Asks the registry for what the tags of the images in compose.yaml and Dockerfile are, and writes the digests to
# DIR/.env (default: this folder), so that nobody who moves a tag changes what is built or run. It takes the network and
# docker's buildx. Take a line away for the tag alone; run it again for newer digests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here}"
[ -e .env ] || { echo "no .env in $PWD: run prepare.sh first" >&2; exit 1; }
pins=$(sed -n 's/.*[ "]\([a-z]*:[0-9][^$ ]*\)${\(KILN_[A-Z]*_DIGEST\):+@}.*/\2 \1/p' "$here/compose.yaml" "$here/Dockerfile")
echo "$pins" | while read -r name image; do
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
    case $digest in
        sha256:*) ;;
        *) echo "$image: the registry shows no digest, but '$digest'" >&2; exit 1 ;;
    esac
    sed -i "/^$name=/d" .env
    echo "$name=$digest" >>.env
    echo "$image@$digest"
done
