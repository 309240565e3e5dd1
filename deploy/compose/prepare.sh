#!/bin/sh
# deploy/compose/prepare.sh [DIR]
#
# What compose.yaml mounts, below DIR/secrets (default: this folder), and DIR/.env: certificates of a development
# authority (deploy/make_dev_certs.sh), the farm's signing key, the tier's password, and the configurations beside
# them. What is there stays, and in .env the digests of pin.sh; take a file away for a new one. Both daemons of the
# farm sign with one key.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "${1:-$here}"
umask 077
uid=$(id -u)
[ "$uid" -ne 0 ] || uid=1000   # kilnd's in its container; who prepares as root gives the files to it

KILN_CERT_HOSTS=DNS:farm-1,DNS:farm-2,DNS:tier "$root/deploy/make_dev_certs.sh" secrets/authority \
    kilnd=spiffe://example.org/kilnd train=spiffe://example.org/train >/dev/null
for part in farm tier train; do
    mkdir -p "secrets/$part"
    cp secrets/authority/ca.crt "secrets/$part/"
done
cp secrets/authority/server.crt secrets/authority/server.key secrets/authority/kilnd.crt secrets/authority/kilnd.key \
    secrets/farm/
cp secrets/authority/server.crt secrets/authority/server.key secrets/tier/
cp secrets/authority/train.crt secrets/authority/train.key secrets/train/
[ -e secrets/farm/signing.pem ] || openssl genpkey -quiet -algorithm ed25519 -out secrets/farm/signing.pem
[ -e secrets/farm/tier.password ] || openssl rand -hex 16 >secrets/farm/tier.password
printf 'user default off\nuser kiln on >%s ~kiln:1:train:* %s\n' "$(cat secrets/farm/tier.password)" \
    "+@read +@write +@scripting +@connection -@dangerous" >secrets/tier/users.acl
cp "$here/farm.textproto" secrets/farm/kilnd.textproto
cp "$here/tunnel.conf" secrets/farm/
cp "$here/redis.conf" secrets/tier/
[ "$(id -u)" -ne 0 ] || chown -R "$uid" secrets/farm secrets/tier secrets/train

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
digests=$(sed -n '/_DIGEST=/p' .env 2>/dev/null || true)
printf 'KILN_UID=%s\nKILN_BUNDLE=build/kiln-%s-x86_64.tar.gz\n' "$uid" "$version" >.env
[ -z "$digests" ] || printf '%s\n' "$digests" >>.env
[ -e "$root/build/kiln-$version-x86_64.tar.gz" ] || echo "next: deploy/bundle.sh makes build/kiln-$version-x86_64.tar.gz"
