// Package learn is the learning loop of a term: from how queries arrive and run it finds how long
// they run where, which agents depart from their type, what lanes are worth, and what to forget.
//
// In come the pool of members and models, arrivals and how long queries ran, as [leader.State]
// tells of them by its actions. Out go [leader.Advice] and what to forget, which are the state's
// events Learned and Outdated, and how demand has changed, which is to be planned for. It starts no
// goroutine, reads no clock or file and writes no log: what goes wrong comes back as an error.
package learn
