#!/bin/sh
# The other end of rsh: runs the one line that a caller sends, with the line's output as the answer.
exec socat TCP-LISTEN:514,reuseaddr,fork "SYSTEM:read -r line; eval \"\$line\""
