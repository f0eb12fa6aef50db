package bench

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/profiles/workload"
)

// RandomQuery makes a query of the given batch size for the model that metadata describes, with
// random inputs within the model's id bounds. The notes say what had to be guessed about the
// inputs. shapes are those of some inputs; see [ModelOptions].
func RandomQuery(metadata *inference.ModelMetadataResponse, batchSize int, seed uint64,
	shapes map[string][]int64) (query *oip.Request, notes []string, err error) {
	m, err := newModel(metadata, metadata.GetName(), ModelOptions{
		LargestBatchSize: batchSize,
		QoSTarget:        time.Second, // nothing is measured
		Seed:             seed,
		Shapes:           shapes,
	})
	if err != nil {
		return nil, nil, err
	}
	if m.LargestBatchSize < batchSize {
		return nil, nil, fmt.Errorf("batch size %d, the model takes at most %d", batchSize,
			m.LargestBatchSize)
	}
	query, _ = m.makeRequest(workload.Query{BatchSize: batchSize}, rand.New(rand.NewPCG(seed, 0)))
	return query, m.Notes, nil
}
