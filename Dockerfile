# One image for every process of boreal: the command says which. docker-compose.yml runs a whole installation of them.
FROM python:3.11-slim

WORKDIR /opt/boreal
COPY pyproject.toml README.md LICENSE ./
COPY boreal boreal
COPY sunion sunion
COPY operators operators
COPY reconcile reconcile
COPY services services
COPY simulation simulation
COPY bench bench
RUN pip install --no-cache-dir '.[stack]'

RUN useradd --system --create-home boreal && install --directory --owner boreal /var/lib/boreal
USER boreal
WORKDIR /var/lib/boreal
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1

CMD ["python", "-m", "services.stack.supervisor"]
