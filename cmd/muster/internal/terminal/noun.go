package terminal

import "fmt"

// CountNoun formats n with the noun in singular or plural: "1 agent", "2 agents".
func CountNoun(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
