"""Where the files of each data set come from, and the checksums they must have."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Source:
    """One folder of files: what it must hold, and where to download that.

    Args:
        folder: its name under the data root.
        files: each file and the checksum of its content (after gunzip), or None if none is published.
        archives: each file to download and its checksum as served; a tar is unpacked into `files`.
            Checksums are sha256, or begin with 'md5:'.
        mirrors: base addresses, tried in order.
        packaged: the folder where the operating system's package puts the same files, if there is one.
    """

    folder: str
    files: dict[str, str | None]
    archives: dict[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    packaged: str | None = None

    def remedy(self) -> str:
        """What a person can do to get the files, for errors."""
        what, where = ", ".join(self.archives or self.files), " or ".join(self.mirrors)
        packed = any(archive not in self.files for archive in self.archives)
        return f"get {what} from {where}{' and unpack it' if packed else ''}"


_MNIST = Source(
    folder="mnist",
    files={
        "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    archives={
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

_FASHION = Source(
    folder="fashion-mnist",
    files={
        "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    archives={
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    packaged="/usr/share/datasets/fashion-mnist",  # Debian's dataset-fashion-mnist, gzipped again
)

_WRITERS = Source(
    folder="mnist-by-writer",
    files={
        "qmnist-train-labels-idx2-int.gz": "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
        "qmnist-test-labels-idx2-int.gz": "92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd",
    },
    archives={
        "qmnist-train-labels-idx2-int.gz": "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        "qmnist-test-labels-idx2-int.gz": "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
    },
    mirrors=("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
)

_CIFAR_BINARY = Source(
    folder="cifar-10-batches-bin",
    files={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    archives={"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
)

_CIFAR_PICKLED = Source(
    folder="cifar-10-batches-py",
    files={
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
    mirrors=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
)

_FEMNIST_TFF = Source(
    folder="femnist",
    files={"fed_emnist_train.h5": None, "fed_emnist_test.h5": None},
    archives={"fed_emnist.tar.bz2": "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"},
    mirrors=("https://storage.googleapis.com/tff-datasets-public/",),
)

_FEMNIST_LEAF = Source(
    folder="femnist",
    files={"train": None, "test": None},  # folders of JSON files
    mirrors=("https://github.com/TalwalkarLab/leaf",),
)

# Every layout of a data set's files; the first one with archives is the one that is downloaded.
SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (_MNIST,),
    "fashion-mnist": (_FASHION,),
    "mnist-by-writer": (_WRITERS,),
    "cifar-10": (_CIFAR_BINARY, _CIFAR_PICKLED),
    "femnist": (_FEMNIST_TFF, _FEMNIST_LEAF),
}
