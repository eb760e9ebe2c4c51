#!/bin/sh
# Runs inside a lab, on each of its hosts. An exit status other than 0 on one of them is that of `netacc lab run`.
case "$NETACC_LAB_HOSTS/$NETACC_LAB_HOST" in
    1/*) exec ./verbs-test both "$NETACC_LAB_ADDRESS" ;;
    2/1) exec ./verbs-test server "$NETACC_LAB_ADDRESS" ;;
    2/2) exec ./verbs-test client "$NETACC_LAB_PEER" ;;
esac
echo "run-test.sh: not in a lab of one or two hosts" >&2
exit 2
