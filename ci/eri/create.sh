#!/usr/bin/env bash
# Creates two ECS instances with elastic RDMA interfaces by the Alibaba Cloud CLI, and prints their ids and addresses.
set -euo pipefail

usage() {
    cat <<'USAGE'
Usage: ci/eri/create.sh --region R --vswitch ID --security-group ID --key-pair NAME --image ID
                        [--placement low-latency|none] [--type ecs.g8ae.4xlarge] [--dry-run]

Two instances in one zone, each with an elastic RDMA interface; with `--placement low-latency` in a new deployment set of
that strategy. Needs `aliyun` with credentials, and jq. The security group has to permit connections between the two at
all ports of ci/eri/README.md. --dry-run prints the commands instead. Created instances cost money until they are
deleted: the last line of the output shows how.

Exit status: 0 created; 1 an instance or a set could not be created; 2 wrong arguments.
USAGE
}

wrong() {
    echo "create.sh: $1" >&2
    usage >&2
    exit 2
}

region='' vswitch='' group='' key='' image='' placement=none kind=ecs.g8ae.4xlarge dry=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --dry-run) dry=1; shift; continue ;;
        --region | --vswitch | --security-group | --key-pair | --image | --placement | --type)
            [[ $# -ge 2 ]] || wrong "$1 needs a value" ;;
        *) wrong "unknown option $1" ;;
    esac
    case $1 in
        --region) region=$2 ;;
        --vswitch) vswitch=$2 ;;
        --security-group) group=$2 ;;
        --key-pair) key=$2 ;;
        --image) image=$2 ;;
        --placement) placement=$2 ;;
        --type) kind=$2 ;;
    esac
    shift 2
done
for name in region vswitch group key image; do
    [[ -n ${!name} ]] || wrong "missing argument: $name"
done
[[ $placement == low-latency || $placement == none ]] || wrong "placement is low-latency or none"

ecs() {
    if [[ -n $dry ]]; then
        printf 'aliyun ecs'
        printf ' %q' "$@"
        echo
    else
        aliyun ecs "$@"
    fi
}

if [[ -z $dry ]]; then
    for tool in aliyun jq; do
        command -v "$tool" >/dev/null || { echo "create.sh: $tool is not installed" >&2; exit 1; }
    done
fi

set_id=''
if [[ $placement == low-latency ]]; then
    made=$(ecs CreateDeploymentSet --RegionId "$region" --Strategy LowLatency --DeploymentSetName netacc-lab)
    if [[ -n $dry ]]; then
        echo "$made"
        set_id=DEPLOYMENT-SET
    else
        set_id=$(jq -r .DeploymentSetId <<<"$made")
    fi
fi
# In the interface's high-performance mode it is an elastic RDMA interface.
arguments=(
    RunInstances --RegionId "$region" --Amount 2 --InstanceType "$kind" --ImageId "$image" --KeyPairName "$key"
    --InstanceName netacc-lab --NetworkInterface.1.InstanceType Primary --NetworkInterface.1.VSwitchId "$vswitch"
    --NetworkInterface.1.SecurityGroupId "$group"
    --NetworkInterface.1.NetworkInterfaceTrafficMode HighPerformance
)
[[ -z $set_id ]] || arguments+=(--DeploymentSetId "$set_id")
made=$(ecs "${arguments[@]}")
if [[ -n $dry ]]; then
    echo "$made"
    exit 0
fi
ids=$(jq -c .InstanceIdSets.InstanceIdSet <<<"$made")
until state=$(ecs DescribeInstances --RegionId "$region" --InstanceIds "$ids") &&
    [[ $(jq '[.Instances.Instance[] | select(.Status == "Running")] | length' <<<"$state") == 2 ]]; do
    echo "create.sh: not running yet: $ids" >&2
    sleep 5
done
jq -r '.Instances.Instance[] | "\(.InstanceId) \(.VpcAttributes.PrivateIpAddress.IpAddress[0])"' <<<"$state"
echo "delete them: aliyun ecs DeleteInstances --RegionId $region --Force true$(jq -r '
    to_entries[] | " --InstanceId.\(.key + 1) \(.value)"' <<<"$ids" | tr -d '\n')"
[[ -z $set_id ]] || echo "and then: aliyun ecs DeleteDeploymentSet --RegionId $region --DeploymentSetId $set_id"
