# Ends a control plane and removes all that belongs to it: remove.sh NAMESPACE FOLDER
# Every process of a control plane runs in its network namespace, so the namespace knows them all.
attempts=0
while pids=$(ip netns pids "$1" 2>/dev/null) && [ -n "$pids" ] && [ $attempts -lt 100 ]; do
    kill -9 $pids 2>/dev/null
    attempts=$((attempts + 1))
    sleep 0.05
done
# A node has containers too, with namespaces of their own. Their root folders are below the folder of the node.
data=/var/lib/klambda-testbed/${2##*/}
if [ -d "$data" ]; then
    attempts=0
    while [ $attempts -lt 100 ]; do
        pids=$(awk -v data="$data/" '$5 == "/" && index($0, data) { split(FILENAME, part, "/"); print part[3] }' \
            /proc/[0-9]*/mountinfo 2>/dev/null)
        [ -z "$pids" ] && break
        kill -9 $pids 2>/dev/null
        attempts=$((attempts + 1))
        sleep 0.05
    done
    awk -v data="$data/" 'index($2, data) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount -l 2>/dev/null
    # Only empty groups can be removed.
    for group in /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods; do
        [ -d "$group" ] && find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    find /var/log/containers -lname "$data/*" -delete 2>/dev/null
    grep -lsF "$data/" /var/lib/cni/results/* | xargs -r rm -f
    # The kubelet changes settings of the whole machine.
    [ -f "$data/sysctls" ] && sysctl -qp "$data/sysctls"
    rm -rf "$data"
fi
ip link delete "$1" 2>/dev/null
ip netns delete "$1" 2>/dev/null
rm -rf "$2"
