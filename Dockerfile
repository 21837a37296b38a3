# One image for every process of boreal: the command says which. docker-compose.yml runs a whole installation of them.
FROM python:3.11-slim-bookworm

# Of the machine's own, since Spark asks its executors for a module that the Java of a wheel lacks.
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/boreal
COPY pyproject.toml README.md LICENSE ./
COPY boreal boreal
COPY sunion sunion
COPY operators operators
COPY reconcile reconcile
COPY formats formats
COPY intake intake
COPY logs logs
COPY deployment deployment
COPY embedded embedded
COPY services services
COPY spark_jobs spark_jobs
COPY simulation simulation
COPY bench bench
COPY api api
COPY boreal_cli boreal_cli
COPY boreal_testing boreal_testing
RUN pip install --no-cache-dir '.[librdkafka,otel,stack]'

RUN useradd --system --create-home --uid 10001 boreal && install --directory --owner boreal /var/lib/boreal
USER boreal
WORKDIR /var/lib/boreal
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
# The connector's jars, so that no job waits for them.
RUN python -c "from services.hosting.fetch import spark; spark()"

CMD ["python", "-m", "services.stack.supervisor"]
