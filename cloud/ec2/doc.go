// Package ec2 rents the instances of a fleet from Amazon EC2, and knows what they cost.
//
// It is the only package that speaks to AWS about instances. Launch is one CreateFleet call of the
// kind instant for one slot, with an override for each subnet: the answer has the instance, or the
// reason of each zone. The tags that make an instance ours go with that call, so nothing is rented
// that List does not find. What AWS answers becomes one of package cloud's errors (errors.go).
//
// A Provider starts no goroutine. It remembers prices, the subnets' zones, and which tokens were
// answered without an instance; all of that can be lost.
//
// It was run against moto and against recorded answers, never against AWS itself.
package ec2
