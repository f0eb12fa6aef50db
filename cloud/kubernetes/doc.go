// Package kubernetes rents the instances of a fleet as pods of a Kubernetes cluster: one bare pod for
// each slot, which asks for a node of the slot's type, zone and market. Who brings the nodes,
// Karpenter, a cluster autoscaler or nobody, is the cluster's matter.
//
// The name of a pod is its slot's token, so that whoever asks again gets the same pod (409), and its
// id is its UID, so that nobody ends the pod that came after. A Deployment could not say which of
// its pods is to go. What pods are made from is in a ConfigMap, which also owns them: what removes
// it removes them.
//
// A Provider owns one goroutine, which follows the fleet's pods by a watch; Close ends it. What it
// remembers beside the pods, those that ended lately and the types that were short, can be lost: a
// pod that ended is no danger, since its slot's next generation has another name.
package kubernetes
