package icebergstream;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.CreateNamespace;
import org.apache.spark.sql.catalyst.plans.logical.CreateView;
import org.apache.spark.sql.catalyst.plans.logical.LeafNode;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedTableSpec;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.catalyst.plans.logical.views.CreateIcebergView;
import org.apache.spark.sql.connector.catalog.Identifier;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/** Checks a plan as Spark's parser returns it: its statements, clauses and functions. */
final class ParsedPlanCheck extends PlanVisitor {
  private static final Set<String> QUERIES = lines("queries.txt");
  private static final Set<String> READS = lines("reads.txt");
  private static final Set<String> WRITES = lines("writes.txt");
  private static final Set<String> FUNCTIONS = lines("functions.txt");
  private static final Set<String> ICEBERG_FUNCTIONS = lines("iceberg_functions.txt");
  private static final String SYNTAX = "org.apache.spark.sql.catalyst.";
  // Their names are known during the analysis only, when it is too late to refuse a function.
  private static final Set<String> COMPUTED_NAMES =
      Set.of("ExpressionWithUnresolvedIdentifier");
  // Functions that take types as strings, and functions that return such strings, or options.
  private static final Set<String> WITH_TYPES =
      Set.of("from_json", "from_csv", "variant_get", "try_variant_get");
  private static final Set<String> TYPES_OF_VALUES =
      Set.of("schema_of_json", "schema_of_csv", "map");
  private static final Pattern NOT_SQL = Pattern.compile("^[\\s\\p{Cntrl}]*[\\[{\"]");

  private static final Pattern PATH = Pattern.compile("[/\\\\\\p{Cntrl}]|^\\.{0,2}$");
  // The parser notes in the options of a target which privileges its statement needs.
  private static final Set<String> SPARKS_OPTIONS =
      Set.of(UnresolvedRelation.REQUIRED_WRITE_PRIVILEGES());

  private final String catalog;

  ParsedPlanCheck(String catalog) {
    this.catalog = catalog;
  }

  /** Check a statement, which may be a query, a command, or a write with common table expressions. */
  void visitStatement(LogicalPlan statement) {
    LogicalPlan root = root(statement);
    String kind = root.getClass().getSimpleName();
    if (!QUERIES.contains(kind) && !READS.contains(kind) && !WRITES.contains(kind)) {
      throw refused("`" + root.nodeName() + "`");
    }
    if (root != statement) {
      visitFields(statement, root);
    }
    visitFields(root, null);
  }

  boolean isQuery(LogicalPlan statement) {
    return !WRITES.contains(root(statement).getClass().getSimpleName());
  }

  private void visitFields(LogicalPlan node, LogicalPlan except) {
    checkOptions(node);
    Iterator<Object> fields = node.productIterator();
    while (fields.hasNext()) {
      Object field = fields.next();
      if (field != except) {
        visit(field);
      }
    }
  }

  private static LogicalPlan root(LogicalPlan statement) {
    return statement instanceof UnresolvedWith ? ((UnresolvedWith) statement).child() : statement;
  }

  @Override
  void check(LogicalPlan node) {
    // Below the root there are queries only: Spark would run a command that a view hides in them.
    if (!QUERIES.contains(node.getClass().getSimpleName())) {
      throw refused("`" + node.nodeName() + "` here");
    }
    checkOptions(node);
  }

  /** Refuse names that are paths: catalogs make the folder of a table from its name. */
  private static void checkNames(LogicalPlan node) {
    if (node instanceof ResolvedIdentifier) {
      Identifier identifier = ((ResolvedIdentifier) node).identifier();
      requireNoPath(identifier.name());
      Arrays.stream(identifier.namespace()).forEach(ParsedPlanCheck::requireNoPath);
    } else if (node instanceof LeafNode && node.getClass().getSimpleName().startsWith("Unres")) {
      Iterator<Object> fields = node.productIterator();
      while (fields.hasNext()) {
        Object field = fields.next();
        if (field instanceof Seq) {
          ((Seq<?>) field).foreach(part -> requireNoPath(part.toString()));
        }
      }
    }
  }

  private static Void requireNoPath(String name) {
    if (PATH.matcher(name).find()) {
      throw new NotAllowedException("`" + name + "` is not the name of a table or schema.");
    }
    return null;
  }

  private void checkOptions(LogicalPlan node) {
    checkNames(node);
    if (node instanceof UnresolvedRelation) {
      UnresolvedRelation relation = (UnresolvedRelation) node;
      if (relation.isStreaming() || !SPARKS_OPTIONS.containsAll(relation.options().keySet())) {
        throw refused("`" + relation.name() + "` with options");
      }
    } else if (node instanceof UnresolvedTableValuedFunction) {
      requireFunction(((UnresolvedTableValuedFunction) node).name());
    } else if (node instanceof CreateNamespace) {
      requireComment(((CreateNamespace) node).properties());
    } else if (node instanceof CreateView) {
      requireNone(((CreateView) node).properties().isEmpty(), "TBLPROPERTIES");
    } else if (node instanceof CreateIcebergView) {
      requireNone(((CreateIcebergView) node).properties().isEmpty(), "TBLPROPERTIES");
    }
  }

  @Override
  void check(Expression expression) {
    String kind = expression.getClass().getSimpleName();
    if (kind.equals("PosParameter") || kind.equals("NamedParameter")) {
      throw new NotAllowedException("This server does not support parameters of statements.");
    }
    if (COMPUTED_NAMES.contains(kind) || !expression.getClass().getName().startsWith(SYNTAX)) {
      throw refused("`" + expression.prettyName() + "`");
    }
    if (expression instanceof UnresolvedFunction) {
      UnresolvedFunction function = (UnresolvedFunction) expression;
      requireFunction(function.nameParts());
      if (WITH_TYPES.contains(function.nameParts().last().toLowerCase(Locale.ROOT))) {
        checkTypes(function);
      }
    } else if (expression instanceof UnresolvedGenerator) {
      FunctionIdentifier name = ((UnresolvedGenerator) expression).name();
      requireName(name.database().isEmpty() ? name.funcName() : name.unquotedString());
    } else if (expression instanceof UnresolvedTableSpec) {
      checkTable((UnresolvedTableSpec) expression);
    }
  }

  /**
   * Require that types are written as in SQL. In JSON they may name any class, which Spark would
   * create, and expressions, which Spark would parse and analyze by itself.
   */
  private static void checkTypes(UnresolvedFunction function) {
    Iterator<Expression> arguments = function.arguments().iterator().drop(1);
    while (arguments.hasNext()) {
      Expression argument = arguments.next();
      if (argument instanceof UnresolvedFunction) {
        String name = ((UnresolvedFunction) argument).nameParts().last();
        if (TYPES_OF_VALUES.contains(name.toLowerCase(Locale.ROOT))) {
          continue;
        }
      } else if (argument instanceof Literal && !NOT_SQL.matcher(argument.toString()).find()) {
        continue;
      }
      throw new NotAllowedException(
          "The arguments of `" + function.nameParts().last() + "` after the first one must be "
              + "literals, without JSON, or schema_of_json(...), schema_of_csv(...) or map(...).");
    }
  }

  private static void checkTable(UnresolvedTableSpec table) {
    boolean isIceberg =
        table.provider().isEmpty() || table.provider().get().equalsIgnoreCase("iceberg");
    requireNone(isIceberg, "USING " + table.provider().getOrElse(() -> ""));
    requireNone(table.location().isEmpty(), "LOCATION");
    requireNone(table.properties().isEmpty(), "TBLPROPERTIES");
    requireNone(table.optionExpression().options().isEmpty(), "OPTIONS");
    requireNone(table.serde().isEmpty() && !table.external(), "ROW FORMAT and EXTERNAL");
  }

  private static void requireNone(boolean isNone, String clause) {
    if (!isNone) {
      throw new NotAllowedException("This server does not take `" + clause + "`. Leave it out.");
    }
  }

  private static void requireComment(scala.collection.immutable.Map<String, String> properties) {
    requireNone(properties.removed("comment").isEmpty(), "LOCATION and DBPROPERTIES");
  }

  private void requireFunction(Seq<String> name) {
    if (name.size() == 1) {
      requireName(name.head());
      return;
    }
    boolean isInCatalog =
        name.size() == 2 || (name.size() == 3 && name.head().equalsIgnoreCase(catalog));
    boolean isIceberg =
        isInCatalog
            && name.apply(name.size() - 2).equalsIgnoreCase("system")
            && ICEBERG_FUNCTIONS.contains(name.last().toLowerCase(Locale.ROOT));
    if (!isIceberg) {
      requireName(name.mkString("."));
    }
  }

  private static void requireName(String function) {
    if (!FUNCTIONS.contains(function.toLowerCase(Locale.ROOT))) {
      throw new NotAllowedException(
          "This server does not allow the function `"
              + function
              + "`, which may reach beyond the catalog.");
    }
  }

  static Set<String> lines(String name) {
    try (BufferedReader reader =
        new BufferedReader(
            new InputStreamReader(
                ParsedPlanCheck.class.getResourceAsStream(name), StandardCharsets.UTF_8))) {
      return reader
          .lines()
          .filter(line -> !line.startsWith("#") && !line.isBlank())
          .collect(Collectors.toUnmodifiableSet());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
