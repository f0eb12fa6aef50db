package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// s3Bucket is a bucket of S3, or of a server that speaks its protocol.
type s3Bucket struct {
	client     *s3.Client
	bucket     string
	encryption types.ServerSideEncryption
	key        *string // of KMS, for encryption
	// checksum is of each part, checked by the server; "" for servers that know none.
	checksum types.ChecksumAlgorithm
}

// s3Parameters are those of a URL.
type s3Parameters struct {
	config           []func(*config.LoadOptions) error
	client           []func(*s3.Options)
	endpoint, kmsKey string
	encryption       types.ServerSideEncryption
}

func openS3(ctx context.Context, u *url.URL) (*s3Bucket, error) {
	p, err := parseS3(u.Query())
	if err != nil {
		return nil, err
	}
	// Agents share no quota of retries: each asks again by itself.
	retryer := func() aws.Retryer {
		return retry.NewStandard(func(o *retry.StandardOptions) { o.RateLimiter = ratelimit.None })
	}
	cfg, err := config.LoadDefaultConfig(ctx, append(p.config, config.WithRetryer(retryer))...)
	if err != nil {
		return nil, err
	}
	if p.endpoint != "" {
		cfg.BaseEndpoint = &p.endpoint
	}
	b := &s3Bucket{bucket: u.Host, encryption: p.encryption}
	if p.kmsKey != "" {
		b.key = &p.kmsKey
	}
	if cfg.RequestChecksumCalculation != aws.RequestChecksumCalculationWhenRequired {
		b.checksum = types.ChecksumAlgorithmCrc32
	}
	b.client = s3.NewFromConfig(cfg, append(p.client, func(o *s3.Options) {
		o.HTTPClient = boundedReader(o.HTTPClient.Do)
		o.DisableLogOutputChecksumValidationSkipped = true // a store checks SHA-256
	})...)
	return b, nil
}

// parseS3 reads the parameters of a URL.
func parseS3(q url.Values) (*s3Parameters, error) {
	p := &s3Parameters{}
	flags := map[string]func(on bool){
		"accelerate": func(on bool) {
			p.client = append(p.client, func(o *s3.Options) { o.UseAccelerate = on })
		},
		"anonymous": func(on bool) {
			if on {
				p.config = append(p.config, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
			}
		},
		"disable_https": func(on bool) {
			p.client = append(p.client, func(o *s3.Options) { o.EndpointOptions.DisableHTTPS = on })
		},
		"dualstack": func(on bool) {
			if on {
				p.config = append(p.config,
					config.WithUseDualStackEndpoint(aws.DualStackEndpointStateEnabled))
			}
		},
		"fips": func(on bool) {
			if on {
				p.config = append(p.config, config.WithUseFIPSEndpoint(aws.FIPSEndpointStateEnabled))
			}
		},
		"use_path_style": func(on bool) {
			p.client = append(p.client, func(o *s3.Options) { o.UsePathStyle = on })
		},
	}
	texts := map[string]func(value string) error{
		"endpoint": func(value string) error { p.endpoint = value; return nil },
		"kmskeyid": func(value string) error { p.kmsKey = value; return nil },
		"profile": func(value string) error {
			p.config = append(p.config, config.WithSharedConfigProfile(value))
			return nil
		},
		"region": func(value string) error {
			p.config = append(p.config, config.WithRegion(value))
			return nil
		},
		"request_checksum_calculation": func(value string) error {
			how, err := parseWhen(value, aws.RequestChecksumCalculationWhenSupported,
				aws.RequestChecksumCalculationWhenRequired)
			p.config = append(p.config, config.WithRequestChecksumCalculation(how))
			return err
		},
		"response_checksum_validation": func(value string) error {
			how, err := parseWhen(value, aws.ResponseChecksumValidationWhenSupported,
				aws.ResponseChecksumValidationWhenRequired)
			p.config = append(p.config, config.WithResponseChecksumValidation(how))
			return err
		},
		"ssetype": func(value string) error {
			known := p.encryption.Values()
			i := slices.IndexFunc(known, func(one types.ServerSideEncryption) bool {
				return strings.EqualFold(string(one), value)
			})
			if i < 0 {
				return fmt.Errorf("%q, expected one of %v", value, known)
			}
			p.encryption = known[i]
			return nil
		},
	}
	for name, flag := range flags {
		texts[name] = func(value string) error {
			on, err := strconv.ParseBool(value)
			flag(on)
			return err
		}
	}
	return p, parseParameters(q, texts)
}

func parseWhen[T any](value string, supported, required T) (T, error) {
	switch value {
	case "when_supported":
		return supported, nil
	case "when_required":
		return required, nil
	}
	return supported, fmt.Errorf("%q, expected when_supported or when_required", value)
}

// List implements store.Bucket.
func (b *s3Bucket) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{
		Bucket: &b.bucket, Prefix: &prefix, MaxKeys: aws.Int32(pageSize),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			if err := each(aws.ToString(o.Key), aws.ToInt64(o.Size)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Open implements store.Bucket.
func (b *s3Bucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	if length == 0 {
		found, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.bucket, Key: &key})
		if err != nil {
			return nil, 0, err
		}
		return http.NoBody, aws.ToInt64(found.ContentLength), nil
	}
	in := &s3.GetObjectInput{Bucket: &b.bucket, Key: &key}
	if part := rangeOf(offset, length); part != "" {
		in.Range = &part
	}
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		return nil, 0, err
	}
	return out.Body, sizeOf(aws.ToString(out.ContentRange), aws.ToInt64(out.ContentLength)), nil
}

// Create implements store.Bucket.
func (b *s3Bucket) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	u := newUpload(key, size, r)
	if u.isOnePart() {
		part, err := u.next(nil)
		if err != nil {
			return err
		}
		_, err = b.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &b.bucket, Key: &key, ContentType: aws.String(contentType(key)),
			Body: bytes.NewReader(part), IfNoneMatch: aws.String("*"), ChecksumAlgorithm: b.checksum,
			ServerSideEncryption: b.encryption, SSEKMSKeyId: b.key,
		})
		return err
	}
	begun, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &b.bucket, Key: &key, ContentType: aws.String(contentType(key)),
		ChecksumAlgorithm: b.checksum, ServerSideEncryption: b.encryption, SSEKMSKeyId: b.key,
	})
	if err != nil {
		return err
	}
	if err = b.sendParts(ctx, u, begun.UploadId); err == nil {
		return nil
	}
	// A bucket keeps the parts of an upload, at a price, until somebody aborts it.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	_, _ = b.client.AbortMultipartUpload(after, &s3.AbortMultipartUploadInput{
		Bucket: &b.bucket, Key: &key, UploadId: begun.UploadId,
	})
	return err
}

// abortTimeout bounds how long a failed upload keeps its caller waiting.
const abortTimeout = 10 * time.Second

// sendParts sends the parts of an upload and completes it.
func (b *s3Bucket) sendParts(ctx context.Context, u *upload, id *string) error {
	parts := make([]types.CompletedPart, (u.size+u.partBytes-1)/u.partBytes)
	err := u.sendAll(ctx, func(ctx context.Context, i int, part []byte) error {
		number := aws.Int32(int32(i + 1))
		out, err := b.client.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &b.bucket, Key: &u.key, UploadId: id, PartNumber: number,
			Body: bytes.NewReader(part), ChecksumAlgorithm: b.checksum,
		})
		if err == nil {
			parts[i] = types.CompletedPart{
				PartNumber: number, ETag: out.ETag, ChecksumCRC32: out.ChecksumCRC32,
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &b.bucket, Key: &u.key, UploadId: id, IfNoneMatch: aws.String("*"),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return err
}

// Close implements store.Bucket.
func (b *s3Bucket) Close() error { return nil }

// s3Code is the code of an error of S3, or its HTTP status; "" if it is none.
func s3Code(err error) string {
	var coded smithy.APIError
	var answered interface{ HTTPStatusCode() int }
	code := ""
	if errors.As(err, &coded) {
		code = coded.ErrorCode()
	}
	if errors.As(err, &answered) {
		code = cmp.Or(code, strconv.Itoa(answered.HTTPStatusCode()))
	}
	return code
}
