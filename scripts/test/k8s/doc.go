// Package k8s holds the chart, the examples and the provider of pods against a real Kubernetes
// control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with kwok, which
// plays nodes and what runs on them. `make k8s-cluster` builds them, `make k8s` runs this.
//
// Pods on such nodes run nothing. Where a rented pod has to serve, the test is its kubelet: it
// starts the pod's agent on this machine once the scheduler has bound the pod, and ends it with the
// pod.
//
// Short runs leave out what waits for minutes.
package k8s
