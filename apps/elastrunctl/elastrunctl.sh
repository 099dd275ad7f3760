#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# elastrunctl of a wheel: what it shares with elastrun, nearly all of it, lies there once.
exec "$(dirname "$(readlink -f "$0")")/elastrun" --as-elastrunctl "$@"
