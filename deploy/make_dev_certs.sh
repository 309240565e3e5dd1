#!/bin/sh
# deploy/make_dev_certs.sh DIR NAME=URI…
#
# Certificates for trying mutual TLS: an authority, one for kilnd, and for each NAME one whose SAN URI says who that
# is (listen.tenants.identities). Not for production: the authority's key lies beside them, and nothing is revoked.
# What is in DIR stays: call it again for more names, or, after taking a file away, for a new one of that name.
#
# KILN_CERT_HOSTS: further names and addresses of kilnd's machine, as "DNS:farm.example,IP:10.0.0.7".
# KILN_CERT_DAYS: how long they last; default 30.
set -eu

if [ $# -lt 1 ]; then
    echo "usage: deploy/make_dev_certs.sh DIR NAME=URI…" >&2
    exit 2
fi
for pair in "$@"; do
    [ "$pair" = "$1" ] && continue
    case "$pair" in
        *[!A-Za-z0-9_.-]*=* | =* | .*) ;;
        *=*:*) continue ;;
    esac
    echo "make_dev_certs.sh: \"$pair\" is no NAME=URI, such as train=spiffe://example.org/train" >&2
    exit 2
done
umask 077
mkdir -p "$1"
cd "$1"
shift
days=${KILN_CERT_DAYS:-30}
hosts="DNS:localhost,DNS:$(hostname),IP:127.0.0.1,IP:::1${KILN_CERT_HOSTS:+,$KILN_CERT_HOSTS}"

# key NAME: an elliptic curve's, 0600.
key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"; }

# issue NAME USAGE SAN: NAME.key, and NAME.crt that the authority has signed.
issue() {
    [ -e "$1.crt" ] && return 0
    key "$1"
    openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr"
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%s\nsubjectAltName=%s\n' \
        "$2" "$3" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -days "$days" -extfile "$1.ext" -out "$1.new" 2>/dev/null
    rm "$1.csr" "$1.ext"
    mv "$1.new" "$1.crt"
    echo "$PWD/$1.crt"
}

if [ ! -e ca.crt ]; then
    key ca
    openssl req -x509 -new -key ca.key -subj "/CN=kiln development authority" -days "$days" -out ca.crt \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign"
    echo "$PWD/ca.crt"
fi
issue server serverAuth "$hosts"
for pair in "$@"; do
    issue "${pair%%=*}" clientAuth "URI:${pair#*=}"
done
