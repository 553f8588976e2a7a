defmodule ExternalService.Test.Coverage do
  @moduledoc """
  Counts which services the tests called, and how those calls went: a service that was only ever called with success has
  retries, a breaker and limits that no test has seen at work.

      # test/test_helper.exs
      ExternalService.Test.Coverage.install_reporter()
      ExUnit.start()

  After the tests it prints a table, with a mark on each service whose calls never met a failure:

      ExternalService: what the tests have seen
        service     calls  retried  failed  rejected  throttled  saturated
        MyApp.Mail     12        3       1         0          0          0
      ! MyApp.Geo       7        0       0         0          0          0
      ! called, but never retried, failed or refused

  It counts calls, not events: one that was retried four times is one. A call that failed has failed, though a fallback
  may have answered for it. Calls of services with `telemetry: :changes` are
  not seen.
  """

  alias ExternalService.{CircuitBreakerOpen, NoEndpoint, RateLimited, ServiceNotStarted, ServiceSaturated, Telemetry}

  @compile {:no_warn_undefined, [ExUnit]}

  @start [:external_service, :call, :start]
  @stop [:external_service, :call, :stop]
  @exception [:external_service, :call, :exception]
  @fallback [:external_service, :fallback]

  # What befell a call, by the event that tells of it.
  @marks %{
    [:external_service, :call, :retry] => :retried,
    [:external_service, :circuit_breaker, :blown] => :rejected,
    [:external_service, :rate_limit, :sleep] => :throttled,
    [:external_service, :rate_limit, :rejected] => :throttled,
    [:external_service, :concurrency, :rejected] => :saturated
  }

  @columns [:calls, :retried, :failed, :rejected, :throttled, :saturated]
  @positions @columns |> Enum.with_index(2) |> Map.new()

  @typedoc "Numbers of calls; `:exercised?` says whether any of them did not just succeed."
  @type entry :: %{
          service: ExternalService.service(),
          calls: non_neg_integer(),
          retried: non_neg_integer(),
          failed: non_neg_integer(),
          rejected: non_neg_integer(),
          throttled: non_neg_integer(),
          saturated: non_neg_integer(),
          exercised?: boolean()
        }

  @doc "Begins to count, or returns `{:error, :already_exists}` if it does."
  @spec attach() :: :ok | {:error, :already_exists}
  def attach do
    keep_table()
    events = [@start, @stop, @exception, @fallback | Map.keys(@marks)]
    Telemetry.attach_many(__MODULE__, events, &__MODULE__.__count__/4, nil)
  end

  @doc "Stops counting, and keeps what was counted; `{:error, :not_found}` if it did not count."
  @spec detach() :: :ok | {:error, :not_found}
  def detach, do: Telemetry.detach(__MODULE__)

  @doc "Counts from now on, and prints the report when the tests are over."
  @spec install_reporter() :: :ok
  def install_reporter do
    attach()
    Application.ensure_loaded(:ex_unit)
    ExUnit.after_suite(fn _result -> IO.puts(report()) end)
    :ok
  end

  @doc "Forgets what was counted."
  @spec reset() :: :ok
  def reset do
    if table?(), do: :ets.delete_all_objects(__MODULE__)
    :ok
  end

  @doc "Returns what was counted for each service that was called, in the order of their names."
  @spec entries() :: [entry()]
  def entries do
    rows = if table?(), do: :ets.tab2list(__MODULE__), else: []
    rows |> Enum.map(&entry/1) |> Enum.sort_by(&inspect(&1.service))
  end

  defp entry(row) do
    [service | counts] = Tuple.to_list(row)
    [_calls | marks] = counts
    @columns |> Enum.zip(counts) |> Map.new() |> Map.merge(%{service: service, exercised?: Enum.sum(marks) > 0})
  end

  @doc "Returns the table as text."
  @spec report() :: String.t()
  def report do
    case entries() do
      [] -> "ExternalService: the tests called no service"
      entries -> Enum.join(["ExternalService: what the tests have seen" | table(entries)], "\n")
    end
  end

  defp table(entries) do
    names = ["service" | Enum.map(entries, &inspect(&1.service))]
    width = names |> Enum.map(&String.length/1) |> Enum.max()
    head = line(" ", "service", width, Enum.map(@columns, &Atom.to_string/1))
    [head | Enum.map(entries, &row(&1, width))] ++ legend(entries)
  end

  defp row(entry, width) do
    counts = Enum.map(@columns, &Integer.to_string(entry[&1]))
    line(if(entry.exercised?, do: " ", else: "!"), inspect(entry.service), width, counts)
  end

  defp line(mark, name, width, cells) do
    columns = Enum.zip_with(@columns, cells, &String.pad_leading(&2, String.length(Atom.to_string(&1))))
    Enum.join([mark <> " " <> String.pad_trailing(name, width) | columns], "  ")
  end

  defp legend(entries),
    do: if(Enum.all?(entries, & &1.exercised?), do: [], else: ["! called, but never retried, failed or refused"])

  # A call and its events are of one process, and a call may be made inside another: so the calls under way are a stack
  # of that process, each with what has befallen it.
  @doc false
  def __count__(@start, _measurements, %{service: service}, _config),
    do: Process.put(__MODULE__, [{service, []} | under_way()])

  def __count__(@stop, _measurements, %{service: service, result: result}, _config),
    do: ended(service, result_marks(result, service))

  def __count__(@exception, _measurements, %{service: service, reason: reason}, _config),
    do: ended(service, raised_marks(reason, service))

  def __count__(@fallback, _measurements, %{service: service, reason: error}, _config),
    do: mark(service, raised_marks(error, service))

  def __count__(event, _measurements, %{service: service}, _config), do: mark(service, [@marks[event]])

  defp mark(service, more) do
    with [{^service, marks} | outer] <- under_way(), do: Process.put(__MODULE__, [{service, more ++ marks} | outer])
  end

  # Counting may have begun when the call was under way.
  defp ended(service, marks) do
    with [{^service, before} | outer] <- under_way() do
      if outer == [], do: Process.delete(__MODULE__), else: Process.put(__MODULE__, outer)
      count(service, Enum.uniq(marks ++ before))
    end
  end

  defp under_way, do: Process.get(__MODULE__, [])

  defp count(service, marks) do
    none = List.to_tuple([service | Enum.map(@columns, fn _ -> 0 end)])
    :ets.update_counter(__MODULE__, service, Enum.map([:calls | marks], &{@positions[&1], 1}), none)
  end

  # An error of another service is a result of this one like any other. What `call` returns as an error, `call!` raises.
  defp result_marks({:error, %module{context: %{service: service}}}, service), do: marks(module)
  defp result_marks(_result, _service), do: []

  defp raised_marks(%module{context: %{service: service}}, service), do: marks(module)
  defp raised_marks(_reason, _service), do: [:failed]

  defp marks(refusal) when refusal in [CircuitBreakerOpen, NoEndpoint], do: [:rejected]
  defp marks(RateLimited), do: [:throttled]
  defp marks(ServiceSaturated), do: [:saturated]
  defp marks(ServiceNotStarted), do: []
  defp marks(_failure), do: [:failed]

  # The table outlives the test that attached, so a process of its own keeps it.
  defp keep_table do
    make = fn -> :ets.new(__MODULE__, [:named_table, :public, write_concurrency: true]) end

    case Agent.start(make, name: __MODULE__) do
      {:ok, _pid} -> :ok
      {:error, {:already_started, _pid}} -> :ok
    end
  end

  defp table?, do: :ets.whereis(__MODULE__) != :undefined
end
