# An image of Amazon Linux 2023 with Muster, its units and the models, for rented machines:
#
#   packer init deploy/ec2/muster.pkr.hcl
#   packer build -var rpm=build/packages/muster-VERSION.x86_64.rpm -var models=MODELS -var ca=ca.crt \
#     deploy/ec2/muster.pkr.hcl
#
# Baked models make a machine serve a minute after its launch. For GPUs, start from AWS's deep
# learning base image (source_name), which has the driver, and see docs/install.md.
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3.0"
    }
  }
}

variable "rpm" { type = string }
variable "models" { type = string }
variable "ca" { type = string }
variable "region" { default = "us-east-1" }
variable "source_name" { default = "al2023-ami-2023.*-kernel-6.1-x86_64" }

source "amazon-ebs" "muster" {
  region        = var.region
  instance_type = "c5.large"
  ssh_username  = "ec2-user"
  ami_name      = "muster-${formatdate("YYYYMMDD-hhmm", timestamp())}"
  imds_support  = "v2.0"
  source_ami_filter {
    filters     = { name = var.source_name, virtualization-type = "hvm" }
    owners      = ["amazon"]
    most_recent = true
  }
  metadata_options {
    http_tokens = "required"
  }
}

build {
  sources = ["source.amazon-ebs.muster"]
  # A folder is uploaded only into one that exists. /tmp, which is in memory, is too small for models.
  provisioner "shell" {
    inline = ["mkdir -p /var/tmp/muster/ec2 /var/tmp/muster/models"]
  }
  provisioner "file" {
    source      = var.rpm
    destination = "/var/tmp/muster/muster.rpm"
  }
  provisioner "file" {
    source      = "${path.root}/"
    destination = "/var/tmp/muster/ec2/"
  }
  provisioner "file" {
    source      = var.ca
    destination = "/var/tmp/muster/ca.crt"
  }
  provisioner "file" {
    source      = "${var.models}/"
    destination = "/var/tmp/muster/models/"
  }
  provisioner "shell" {
    inline = [
      "cd /var/tmp/muster",
      "sudo dnf install -y ./muster.rpm",
      "sudo systemctl disable muster",
      "sudo install -D -m 0755 -t /usr/lib/muster ec2/return.sh ec2/secrets.sh",
      "sudo install -D -m 0644 -t /etc/systemd/system ec2/muster-secrets.service",
      "sudo install -D -m 0644 -t /etc/systemd/system/muster.service.d ec2/rented.conf",
      "sudo install -m 0640 -g muster-keys ca.crt /etc/muster/ca.crt",
      "sudo mkdir -p /var/lib/muster && sudo mv -T models /var/lib/muster/models",
      "sudo chown -R root:root /var/lib/muster/models",
      "cd / && rm -r /var/tmp/muster",
    ]
  }
}
