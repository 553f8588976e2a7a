defmodule ExternalService.Insights do
  alias ExternalService.Insights.{Counts, Findings, Report}
  alias ExternalService.{AttemptTimeout, CircuitBreakerOpen, DeadlineExceeded, RateLimited, RetriesExhausted}

  alias ExternalService.{
    Native,
    NoEndpoint,
    Options,
    Service,
    ServiceNotStarted,
    ServiceSaturated,
    Telemetry,
    Validation
  }

  @moduledoc """
  Watches what calls do in production, and says when a service's options do not fit it.

      iex> clock = ExternalService.VirtualClock.new()
      iex> ExternalService.start(:exchange, clock: clock, circuit_breaker: [tolerate: 2, within: 1_000])
      iex> ExternalService.Insights.attach(services: [:exchange], log: false)
      :ok
      iex> for _ <- 1..4 do
      ...>   ExternalService.call(:exchange, [max_attempts: 1], fn -> :retry end)
      ...>   ExternalService.VirtualClock.advance(clock, 5_000)
      ...> end
      iex> report = ExternalService.Insights.report(:exchange)
      iex> {report.calls, report.failed, report.consecutive_failures}
      {4, 4, 4}
      iex> [finding] = report.findings
      iex> finding.check
      :inert_breaker
      iex> finding.message =~ "circuit_breaker: [within: :timer.seconds(30)]"
      true
      iex> ExternalService.Insights.detach()
      :ok

  In an application, attach it when the services are started, after `Supervisor.start_link/2` for one. It hears of calls
  by their telemetry events and counts in the process of the caller, in numbers of a fixed size for each service: no
  process is asked, and nothing is kept of a call. Where it is not attached it costs nothing. It counts no calls of a
  service with `telemetry: :changes`, which has no events for them.

  ## What it finds

    * `:inert_breaker` - more calls in a row failed than the breaker tolerates, and it has not opened: the failures come too far apart
      for its window, or it is not told of them
    * `:attempt_time_dominates` - 20 calls or more take, on average, over twice as long as all the delays between attempts,
      so the options that are sized by the delays do not fit
    * `:degraded_but_succeeding` - of 20 succeeded calls or more, a fifth or more needed a retry

  `report/1` says what is found. It is also logged as a warning, at most once in `:log_every` for each service: it looks
  after each call of a service whose last call failed, and after each 25th call of the others.

  ## Options of `attach/1`

  #{Options.docs(:insights)}
  """

  require Logger

  @handler {__MODULE__, :handler}
  @fallback [:external_service, :fallback]
  @events [@fallback | for(name <- [:stop, :exception, :retry], do: [:external_service, :call, name])]

  # What a caller gets instead of a result without anything being wrong with the service.
  @refusals [RateLimited, ServiceSaturated, ServiceNotStarted, NoEndpoint]
  @failures [RetriesExhausted, AttemptTimeout, DeadlineExceeded]

  @doc """
  Starts to count the calls of services, and to log what it finds.

  If it is attached already it returns `{:error, :already_exists}`. It goes on with the `:log` and `:log_every` it has;
  the services that are meant are counted from zero, those it did not count before included.
  """
  @spec attach(keyword()) :: :ok | {:error, :already_exists}
  def attach(options \\ []) do
    options = Validation.validate!(:insights, options)
    every = System.convert_time_unit(options[:log_every], :millisecond, :native)
    config = %{log: options[:log], log_every: every}

    alone(fn ->
      fresh = Map.new(options[:services] || Service.names(), &{&1, Counts.new()})
      attached = Telemetry.attach_many(@handler, @events, &__MODULE__.handle_event/4, config)
      :persistent_term.put(__MODULE__, if(attached == :ok, do: fresh, else: Map.merge(watched(), fresh)))
      attached
    end)
  end

  @doc "Stops counting and forgets what was counted. Detaching what is not attached does nothing."
  @spec detach() :: :ok
  def detach do
    alone(fn ->
      Telemetry.detach(@handler)
      :persistent_term.erase(__MODULE__)
      :ok
    end)
  end

  @doc """
  Returns what has been counted of a service, or `{:error, :not_attached}` if nothing counts it.

      iex> ExternalService.Insights.report(:never_heard_of)
      {:error, :not_attached}
  """
  @spec report(ExternalService.service()) :: Report.t() | {:error, :not_attached}
  def report(service) do
    case watched() do
      %{^service => counts} ->
        counted = Counts.read(counts)
        struct(%Report{service: service, findings: Findings.of(service, counted)}, counted)

      _others ->
        {:error, :not_attached}
    end
  end

  @doc false
  def handle_event(event, measurements, %{service: service} = metadata, config) do
    case watched() do
      %{^service => counts} -> count(List.last(event), counts, measurements, metadata, config)
      _others -> :ok
    end
  end

  defp count(:retry, counts, _measurements, %{service: service}, _config) do
    Counts.attempt(counts)
    mark({:retried, service}, counts.marks)
  end

  # A fallback hides from the caller that the service failed, but not from those who watch the service.
  defp count(:fallback, counts, _measurements, %{service: service, reason: error}, _config),
    do: mark({:covered, service}, {counts.marks, error})

  defp count(name, counts, %{duration: duration, monotonic_time: now}, %{service: service} = metadata, config) do
    retried? = marked({:retried, service}) == counts.marks
    covered = marked({:covered, service})
    outcome = if name == :stop, do: returned(metadata, covered), else: raised(metadata)
    outcome = if outcome == :succeeded and retried?, do: :degraded, else: outcome
    Counts.call(counts, outcome, duration, fn -> time_of(service) end)
    if config.log and Counts.look?(counts, now), do: log(service, counts, now, now + config.log_every)
    :ok
  end

  # The call has begun in this process and ends in it, so the marks for its end stand in the process dictionary. Where
  # no end will be told of there must be none, and one from before the last attach/1 has another reference.
  defp mark({_what, service} = key, value) do
    unless match?(%Service{telemetry: :changes}, Service.get(service)), do: Process.put({__MODULE__, key}, value)
    :ok
  end

  defp marked(key), do: Process.delete({__MODULE__, key})

  defp returned(%{service: service, fallback: true}, {_marks, error}), do: judged(error, service, :failed)
  defp returned(%{fallback: true}, nil), do: :failed
  defp returned(metadata, _covered), do: returned(metadata)

  defp returned(%{service: service, result: {:error, %{__exception__: true} = error}}),
    do: judged(error, service, :succeeded)

  defp returned(_metadata), do: :succeeded

  # What call/2 returns call!/2 raises: it is the same to the service.
  defp raised(%{service: service, kind: :error, reason: reason}), do: judged(reason, service, :failed)
  defp raised(_metadata), do: :failed

  # An error of another service, that the function had from a call of its own, is a result like any other.
  defp judged(%{context: %{service: other}}, service, otherwise) when other !== service, do: otherwise
  defp judged(%CircuitBreakerOpen{}, _service, _otherwise), do: :rejected
  # Nothing was left before the service was asked.
  defp judged(%DeadlineExceeded{context: %{skipped: true}}, _service, _otherwise), do: :succeeded
  defp judged(%module{}, _service, _otherwise) when module in @failures, do: :failed
  defp judged(%module{}, _service, _otherwise) when module in @refusals, do: :succeeded
  defp judged(_other, _service, otherwise), do: otherwise

  # Of failures it matters how far they are apart for the breaker, which has the service's clock.
  defp time_of(service) do
    case Service.get(service) do
      %Service{clock: clock} -> Native.clock_now(clock)
      nil -> Native.clock_now(nil)
    end
  end

  defp log(service, counts, now, later) do
    with [_ | _] = findings <- Findings.of(service, Counts.read(counts)), true <- Counts.speak?(counts, now, later) do
      Enum.each(findings, &Logger.warning("[ExternalService.Insights] " <> &1.message))
    end
  end

  # The counts of the services, in one term: it is read with every event, and written when it is attached.
  defp watched, do: :persistent_term.get(__MODULE__, %{})

  # One attaching or detaching at a time.
  defp alone(change), do: :global.trans({__MODULE__, self()}, change, [node()])
end
