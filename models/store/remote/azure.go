package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// azureBucket is a container of Azure Blob Storage.
type azureBucket struct {
	client *container.Client
}

// azureService says where Azure's blob service is: the environment does, and a URL's parameters.
type azureService struct {
	account, domain, protocol string
	isCDN, isEmulator         bool
}

func openAzure(u *url.URL) (*azureBucket, error) {
	connection := cmp.Or(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"),
		os.Getenv("AZURE_STORAGEBLOB_CONNECTIONSTRING"))
	own := azureService{
		account:  os.Getenv("AZURE_STORAGE_ACCOUNT"),
		domain:   cmp.Or(os.Getenv("AZURE_STORAGE_DOMAIN"), "blob.core.windows.net"),
		protocol: os.Getenv("AZURE_STORAGE_PROTOCOL"),
	}
	own.isCDN, _ = strconv.ParseBool(os.Getenv("AZURE_STORAGE_IS_CDN"))
	own.isEmulator, _ = strconv.ParseBool(os.Getenv("AZURE_STORAGE_IS_LOCAL_EMULATOR"))
	for part := range strings.SplitSeq(connection, ";") {
		switch name, value, _ := strings.Cut(part, "="); name {
		case "AccountName":
			own.account = cmp.Or(own.account, value)
		case "DefaultEndpointsProtocol":
			own.protocol = cmp.Or(own.protocol, value)
		}
	}
	own.protocol = cmp.Or(own.protocol, "https")
	service, err := own.overridden(u.Query())
	if err != nil {
		return nil, err
	}
	client, err := service.newClient(u.Host, own, connection)
	if err != nil {
		return nil, err
	}
	return &azureBucket{client}, nil
}

// overridden is the service with the parameters of a URL.
func (s azureService) overridden(q url.Values) (azureService, error) {
	text := func(to *string) func(string) error {
		return func(value string) error { *to = value; return nil }
	}
	flag := func(to *bool) func(string) error {
		return func(value string) (err error) { *to, err = strconv.ParseBool(value); return err }
	}
	err := parseParameters(q, map[string]func(string) error{
		"cdn": flag(&s.isCDN), "domain": text(&s.domain), "localemu": flag(&s.isEmulator),
		"protocol": text(&s.protocol), "storage_account": text(&s.account),
	})
	if err == nil && s.protocol != "http" && s.protocol != "https" {
		err = fmt.Errorf("the protocol is %q, expected http or https", s.protocol)
	}
	if err == nil && s.account == "" {
		err = errors.New("no storage account: set AZURE_STORAGE_ACCOUNT, or the URL's parameter " +
			"storage_account")
	}
	return s, err
}

// address is the service's URL.
func (s azureService) address() *url.URL {
	u := &url.URL{Scheme: s.protocol, Host: s.account + "." + s.domain}
	isLocal := strings.HasPrefix(s.domain, "127.0.0.1") || strings.HasPrefix(s.domain, "localhost")
	switch {
	case s.isEmulator || isLocal:
		u.Host, u.Path = s.domain, "/"+s.account
	case s.isCDN:
		u.Host = s.domain
	}
	return u
}

// newClient makes the client of a container, with the credentials that the environment names for its
// own service.
func (s azureService) newClient(name string, own azureService, connection string) (*container.Client,
	error) {
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: boundedReader(http.DefaultClient.Do),
	}}
	at := s.address().JoinPath(name)
	account, key := os.Getenv("AZURE_STORAGE_ACCOUNT"), os.Getenv("AZURE_STORAGE_KEY")
	token := os.Getenv("AZURE_STORAGE_SAS_TOKEN")
	switch {
	case account != "" && key != "":
		shared, err := container.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, err
		}
		return container.NewClientWithSharedKeyCredential(at.String(), shared, options)
	case token != "":
		// The token is a part of the URL, and is for the environment's server alone.
		if want := own.address(); !strings.EqualFold(at.Scheme+"://"+at.Host,
			want.Scheme+"://"+want.Host) {
			return nil, fmt.Errorf("the URL's parameters lead to %s, AZURE_STORAGE_SAS_TOKEN is for %s",
				at.Host, want.Host)
		}
		at.RawQuery = strings.TrimPrefix(token, "?")
		return container.NewClientWithNoCredential(at.String(), options)
	case connection != "":
		return container.NewClientFromConnectionString(connection, name, options)
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return container.NewClient(at.String(), credential, options)
}

// List implements store.Bucket.
func (b *azureBucket) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	size := int32(pageSize)
	pages := b.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{
		Prefix: &prefix, MaxResults: &size,
	})
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Segment.BlobItems {
			if err := each(valueOf(o.Name), valueOf(o.Properties.ContentLength)); err != nil {
				return err
			}
		}
	}
	return nil
}

// valueOf is what p points to, or zero.
func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Open implements store.Bucket.
func (b *azureBucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser,
	int64, error) {
	client := b.client.NewBlobClient(key)
	if length == 0 {
		found, err := client.GetProperties(ctx, nil)
		if err != nil {
			return nil, 0, err
		}
		return http.NoBody, valueOf(found.ContentLength), nil
	}
	answer, err := client.DownloadStream(ctx, &blob.DownloadStreamOptions{
		Range: blob.HTTPRange{Offset: offset, Count: max(length, 0)},
	})
	if err != nil {
		return nil, 0, err
	}
	return answer.Body, sizeOf(valueOf(answer.ContentRange), valueOf(answer.ContentLength)), nil
}

// Create implements store.Bucket.
func (b *azureBucket) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	u, client := newUpload(key, size, r), b.client.NewBlockBlobClient(key)
	kind, any := contentType(key), azcore.ETagAny
	headers := &blob.HTTPHeaders{BlobContentType: &kind}
	unlessExists := &blob.AccessConditions{
		ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: &any},
	}
	if u.isOnePart() {
		part, err := u.next(nil)
		if err != nil {
			return err
		}
		_, err = client.Upload(ctx, streaming.NopCloser(bytes.NewReader(part)),
			&blockblob.UploadOptions{HTTPHeaders: headers, AccessConditions: unlessExists})
		return err
	}
	err := u.sendAll(ctx, func(ctx context.Context, i int, part []byte) error {
		_, err := client.StageBlock(ctx, blockID(i), streaming.NopCloser(bytes.NewReader(part)), nil)
		return err
	})
	if err != nil {
		return err // Azure forgets blocks that are not committed in a week
	}
	blocks := make([]string, (size+u.partBytes-1)/u.partBytes)
	for i := range blocks {
		blocks[i] = blockID(i)
	}
	_, err = client.CommitBlockList(ctx, blocks, &blockblob.CommitBlockListOptions{
		HTTPHeaders: headers, AccessConditions: unlessExists,
	})
	return err
}

// blockID is the name of a part. Azure wants base64, of one length for all.
func blockID(i int) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(i)))
}

// Close implements store.Bucket.
func (b *azureBucket) Close() error { return nil }
