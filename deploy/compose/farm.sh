#!/bin/sh
# The daemon's container: the tunnel to the tier beside it, on a socket that is its user's alone, then kilnd. A tunnel
# that ends is started again; meanwhile look-ups of the tier are misses.
set -eu
umask 077
while true; do
    stunnel /etc/kiln/tunnel.conf || true
    sleep 1
done &
exec /opt/kiln/bin/kilnd --config /etc/kiln/kilnd.textproto
