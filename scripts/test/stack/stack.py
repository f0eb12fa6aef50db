"""Makes the stack of deploy/ec2/stack.yaml in moto, and holds what it made against Muster itself.

cfn-lint checks the template first. Then: the keepers' rights are those that `muster fleet policy`
prints, the workers' are the secrets that secrets.sh fetches, the settings of both are Muster's, the
fleet.yaml of the keepers has no fault that `muster fleet check` finds, and the names that members
join are the keepers'.
"""

import argparse
import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import boto3
import yaml

FOLDER = pathlib.Path("deploy/ec2")
FLEET = "stack-test"


def run(*command):
    """Runs a command without our own settings, and returns its status and what it prints."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return done.returncode, done.stdout + done.stderr


def want(good, what, found=""):
    """Ends the test if something is not good."""
    if not good:
        sys.exit(f"stack: {what}\n{found}")


def plain(value):
    """Returns a part of a policy with lists in order, and single values as lists."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return sorted((plain(v) for v in value), key=str)
    return [value]


def document(iam, arn):
    """Returns the statements of a managed policy."""
    version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    policy = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"][
        "Document"
    ]
    return policy["Statement"]


def files_of(ec2, template):
    """Returns the files that the user data of a launch template writes, by path, and its text."""
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template)
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    text = base64.b64decode(data["UserData"]).decode()
    want("${" not in text and "{: " not in text, "something was not filled in", text)
    return {f["path"]: f["content"] for f in yaml.safe_load(text)["write_files"]}, data


def main():
    """Checks the template, makes the stack and looks at it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--muster", default="bin/muster")
    parser.add_argument("--moto", required=True, help="URL")
    args = parser.parse_args()
    code, said = run(
        pathlib.Path(sys.executable).with_name("cfn-lint"), FOLDER / "stack.yaml"
    )
    want(code == 0, "cfn-lint finds faults", said)

    os.environ |= {
        "AWS_ENDPOINT_URL": args.moto,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    ec2, iam, names = (boto3.client(s) for s in ("ec2", "iam", "route53"))
    subnets = ec2.describe_subnets()["Subnets"][:2]
    given = {
        "Fleet": FLEET,
        "Types": "g4dn.xlarge,c5n.2xlarge,r5n.large",
        "Vpc": subnets[0]["VpcId"],
        "Subnets": ",".join(s["SubnetId"] for s in subnets),
        "Image": ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
    }
    stacks = boto3.client("cloudformation")
    stacks.create_stack(
        StackName=FLEET,
        TemplateBody=(FOLDER / "stack.yaml").read_text(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
    )
    stack = stacks.describe_stacks(StackName=FLEET)["Stacks"][0]
    want(stack["StackStatus"] == "CREATE_COMPLETE", "the stack is not complete", stack)
    out = {o["OutputKey"]: o["OutputValue"] for o in stack["Outputs"]}
    of = {
        r["LogicalResourceId"]: r.get("PhysicalResourceId")
        for r in stacks.describe_stack_resources(StackName=FLEET)["StackResources"]
    }

    keeper, _ = files_of(ec2, of["KeeperTemplate"])
    worker, template = files_of(ec2, of["Template"])
    want(
        template["InstanceInitiatedShutdownBehavior"] == "terminate",
        "machines stay",
        template,
    )
    want(
        template["MetadataOptions"]["InstanceMetadataTags"] == "enabled",
        "no tags",
        template,
    )
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work)
        for name, files in (("keeper", keeper), ("worker", worker)):
            # The files that they name are not here.
            text = files["/etc/muster/muster.yaml"]
            (path / f"{name}.yaml").write_text(text)
            code, said = run(args.muster, "config", "check", path / f"{name}.yaml")
            want(
                "no setting" not in said and "unknown" not in said,
                f"{name}'s settings",
                said,
            )
            settings = yaml.safe_load(text)
            rents = name == "keeper"
            want(
                settings["leader"] == ("must" if rents else "never"),
                f"the leader: {name}",
                text,
            )
            want(("rent" in settings) == rents, f"who rents: {name}", text)
            want(("rented" in settings) != rents, f"who is rented: {name}", text)
            joined = [address.partition(":")[0] for address in settings["join"]]
            records = names.list_resource_record_sets(HostedZoneId=of["Zone"])
            known = [
                r["Name"].rstrip(".")
                for r in records["ResourceRecordSets"]
                if r["Type"] == "A"
            ]
            want(sorted(known) == sorted(joined), f"{name} joins {joined}", known)
        fleet = path / "fleet.yaml"
        fleet.write_text(keeper["/etc/muster/fleet.yaml"])
        role = ("--worker-role", out["WorkerRole"])
        code, said = run(args.muster, "fleet", "policy", fleet, *role)
        want(code == 0, "muster fleet policy", said + fleet.read_text())
        printed, made = (
            json.loads(said)["Statement"],
            document(iam, out["KeeperPolicy"]),
        )
        want(
            plain(printed) == plain(made),
            "the keepers' rights are others than muster fleet policy prints",
            f"{json.dumps(plain(printed), indent=1)}\n{json.dumps(plain(made), indent=1)}",
        )
        _, said = run(args.muster, "fleet", "check", fleet)
        faults = [
            line for line in said.splitlines() if line.startswith(("muster: ", "  "))
        ]
        want(
            len(faults) == 1 and "pricing:GetProducts" in faults[0],
            "muster fleet check finds more than that moto has no price list",
            said,
        )
    secrets = (FOLDER / "secrets.sh").read_text()
    (statement,) = document(iam, of["Secrets"])
    for resource in statement["Resource"]:
        prefix, _, name = resource.rpartition("/")
        want(
            prefix.endswith(f":parameter/muster/{FLEET}") and name in secrets, resource
        )
    want(len(statement["Resource"]) == 3, "three secrets", statement)
    stacks.delete_stack(StackName=FLEET)
    print("stack: made, and as Muster wants it")


main()
