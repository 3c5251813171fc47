# Ends a control plane and removes all that belongs to it: remove.sh NAMESPACE FOLDER
# Every process of a control plane runs in its network namespace, so the namespace knows them all.
attempts=0
while pids=$(ip netns pids "$1" 2>/dev/null) && [ -n "$pids" ] && [ $attempts -lt 100 ]; do
    kill -9 $pids 2>/dev/null
    attempts=$((attempts + 1))
    sleep 0.05
done
ip link delete "$1" 2>/dev/null
ip netns delete "$1" 2>/dev/null
rm -rf "$2"
