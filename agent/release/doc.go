// Package release keeps which versions of models are released, in every agent, and decides about
// canaries while the agent leads.
//
// In come what other agents know ([Releases.AdoptReleases]), what people ask for ([Releases.Set]),
// and from the term what the leader has counted. Out go the releases, to the agent's own parts
// ([Config.Apply]), to the disk and to all members ([Term.Tell]). A release that was made holds
// without a leader, and under the next one: of two of a model the newer one wins everywhere.
//
// A model of a model store has its releases there, for all fleets that follow the store
// ([Config.Store]): the leader writes the next one before its fleet follows it. Only taking a
// version back does not wait for a store that fails; it is written later.
//
// [Releases.Run] has the goroutines, of the term; all methods may be called concurrently.
package release
