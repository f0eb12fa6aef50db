// Package clicks trains a family of models whose accuracies truly differ: they predict clicks,
// which a known teacher draws, and have from 200 to 15,000 parameters.
//
// The teacher embeds four Zipf-distributed ids of 50 each in two dimensions, passes them with six
// normally distributed features through two layers of 24 tanh, and clicks with the probability that
// comes out. Two layers with high gains are hard to learn for a small model: with a simpler teacher
// all sizes learn the same.
//
// Training is deterministic: rows, first weights and the order of all sums depend on the seed
// alone, and not on the number of cores. Only the last bits of exponentials may differ between
// processors, so two machines train the same bytes only if they are of one kind.
package clicks
