#!/bin/sh
# Runs a command in another guest, as mpirun asks its remote shell to: rsh HOST COMMAND. No host of a lab asks who calls.
host=$1
shift
printf '%s\n' "$*" | exec socat -t 600 - "TCP:$host:514"
